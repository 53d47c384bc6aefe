"""The command line, as real processes against real servers: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

from tenxgraph_temporal import END, CompiledGraph, StateGraph, interrupt
from tenxgraph_temporal.examples.process import python_process
from tenxgraph_temporal.runtime.devstack._layout import free_port
from tenxgraph_temporal.runtime.state import AgentState, Message
from tenxgraph_temporal.runtime.storage.contract import Commit

from ..support.app import App, eventually
from ..support.graphs import agent, call
from ..support.world import World

STORY = "tenxgraph_temporal.tests.support.graphs:story"
LIMIT_SECONDS = 60


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __str__(self) -> str:
        return f"code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def environment(app: App, **changes: str | None) -> dict[str, str]:
    """Ours for this test; ``None`` leaves a variable out."""
    ours: dict[str, str | None] = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "TENXGRAPH_"))},
        "TEMPORAL_ADDRESS": app.stack.temporal_address,
        "TENXGRAPH_DATABASE_URL": app.stack.postgres_dsn,
        "TENXGRAPH_DATABASE_SCHEMA": app.store.schema,
        "TENXGRAPH_TASK_QUEUE": app.queue,
        **changes,
    }
    return {name: value for name, value in ours.items() if value is not None}


async def cli(app: App, *arguments: str, **changes: str | None) -> Ended:
    """Run a command to its end."""
    return await execute(arguments, environment(app, **changes))


async def execute(arguments: tuple[str, ...], env: Mapping[str, str], program: tuple[str, ...] = ()) -> Ended:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(program or ("-m", "tenxgraph_temporal.cli")),
        *arguments,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    ended = Ended(process.returncode, out.decode(), err.decode())
    assert "Traceback" not in ended.err, ended
    return ended


def one_line(ended: Ended) -> str:
    """The only line on stderr."""
    (line,) = ended.err.splitlines()
    return line


async def put_thread(app: App, thread_id: str, user_id: str = "alice", status: str = "completed") -> None:
    fields = {"context": b"[]", "execution_meta": json.dumps({"status": status, "current_node": "a"}).encode()}
    commit = Commit(thread_id=thread_id, user_id=user_id, expected_version=0, fields=fields, origin=None)
    await app.store.commit(commit)


def asking() -> CompiledGraph:
    """A graph that pauses once."""

    def ask(state: AgentState) -> Message:
        answer = interrupt({"amount": 5}, message="Refund 5 USD?")
        return Message.text_message(f"the answer was {answer}", role="assistant")

    return single("asking", ask)


def single(name: str, node: Any) -> CompiledGraph:
    builder = StateGraph(AgentState, name=name)
    builder.add_node("only", node)
    builder.set_entry_point("only")
    builder.add_edge("only", END)
    return builder.compile()


# --- setup --------------------------------------------------------------------------------------------------


async def test_setup_is_idempotent(app: App) -> None:
    schema = f"{app.store.schema}_new"
    first = await cli(app, "setup", TENXGRAPH_DATABASE_SCHEMA=schema)
    assert first.code == 0, first
    assert f"schema '{schema}' is up to date" in first.out, first
    second = await cli(app, "setup", "--json", TENXGRAPH_DATABASE_SCHEMA=schema)
    assert second.code == 0, second
    assert second.json["schema"] == schema
    assert set(second.json["search_attributes"]["existing"]) == {
        "TenxGraph",
        "TenxStatus",
        "TenxThreadId",
        "TenxUserId",
    }


async def test_setup_registers_search_attributes_once(app: App) -> None:
    namespace = f"cli-{app.queue}"
    await app.client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=namespace, workflow_execution_retention_period=_protobuf(timedelta(days=1)))
    )

    async def known() -> bool:
        env = await cli(app, "doctor", "--json", TEMPORAL_NAMESPACE=namespace)
        return bool(status_of(env, "namespace") == "ok")

    await eventually(known)
    before = await cli(app, "doctor", "--json", TEMPORAL_NAMESPACE=namespace)
    assert status_of(before, "search attributes") == "failed", before
    made = await cli(app, "setup", TEMPORAL_NAMESPACE=namespace)
    assert made.code == 0, made
    assert "registered" in made.out, made

    async def there() -> bool:
        again = await cli(app, "setup", "--json", TEMPORAL_NAMESPACE=namespace)
        assert again.code == 0, again
        return len(again.json["search_attributes"]["existing"]) == 4

    await eventually(there)


def _protobuf(duration: timedelta) -> Any:
    from google.protobuf.duration_pb2 import Duration

    made = Duration()
    made.FromTimedelta(duration)
    return made


# --- run, show ----------------------------------------------------------------------------------------------


async def test_run_shows_progress_and_prints_the_answer(app: App, world: World) -> None:
    async with app.process(STORY, OUTSIDE_WORLD=world.address):
        ended = await cli(app, "run", "story", "charge me", "--thread", "order-1", "--user", "alice")
        assert ended.code == 0, ended
        assert ended.out == "Your card was charged.\n", ended
        assert "thread order-1 (workflow thread-order-1)" in ended.err, ended
        for step in ("node:model", "tool:lookup", "tool:charge", "tool:receipt"):
            assert f"{step} scheduled" in ended.err, ended
            assert re.search(rf"{step} completed \(attempt 1, \d+@", ended.err), ended
        assert (await world.counts())["charge"] == 1

        fresh = await cli(app, "run", "story", "charge me", "--json", "--config", '{"recursion_limit": 20}')
        assert fresh.code == 0, fresh
        assert fresh.json["answer"] == "Your card was charged."
        assert fresh.json["status"] == "completed"
        assert fresh.json["thread_id"] not in ("", "order-1")

    shown = await cli(app, "show", "order-1", "--json")
    assert shown.code == 0, shown
    document = shown.json
    assert (document["status"], document["user_id"]) == ("completed", "alice"), shown
    assert document["messages"][0]["role"] == "user"
    assert document["messages"][-1]["text"] == "Your card was charged."
    assert [made["tool"] for made in document["messages"][1]["tool_calls"]] == ["lookup", "charge", "receipt"]
    calls = {made["tool"]: made for made in document["calls"]}
    assert set(calls) == {"lookup", "charge", "receipt"}, shown
    charge = calls["charge"]
    assert (charge["status"], charge["attempt"], charge["replays"]) == ("finished", 1, 0), shown
    assert charge["call_key"] == f"{document['messages'][1]['message_id']}:call_2"

    text = await cli(app, "show", "order-1")
    assert text.code == 0, text
    assert f"version {document['version']}" in text.out, text
    assert "Your card was charged." in text.out, text
    assert charge["call_key"] in text.out, text

    older = await cli(app, "show", "order-1", "--version", "1", "--json")
    assert older.code == 0, older
    assert older.json["version"] == 1
    assert len(older.json["messages"]) < len(document["messages"])
    assert older.json["status"] == "running"


async def test_show_tells_of_replays_and_does_not_obey_a_models_escape_codes(app: App) -> None:
    def beep() -> str:
        return "\x1b[31mred\x1b[0m"

    thread_id, _ = await app.run(agent([beep], [call("beep", "c1")], answer="\x1b]0;title\x07done"))
    (made,) = await app.store.calls(thread_id)
    await app.store.count_replay(thread_id, made.ledger_key)
    shown = await cli(app, "show", thread_id)
    assert shown.code == 0, shown
    assert "finished, replayed 1 time" in shown.out, shown
    assert "\x1b" not in shown.out, shown


async def test_show_of_no_thread_and_of_another_users(app: App) -> None:
    await put_thread(app, "hers", "alice")
    nothing = await cli(app, "show", "nothing")
    assert nothing.code == 1, nothing
    assert "there is no thread 'nothing'" in one_line(nothing)
    theirs = await cli(app, "show", "hers", "--user", "bob")
    assert theirs.code == 1, theirs
    assert one_line(theirs) == one_line(nothing).replace("'nothing'", "'hers'"), "as if it did not exist"
    assert (await cli(app, "show", "hers", "--user", "alice")).code == 0


async def test_run_that_fails(app: App) -> None:
    def explode(state: AgentState) -> Message:
        raise ValueError("the model is on fire")

    async with app.worker(single("exploding", explode)):
        ended = await cli(app, "run", "exploding", "hi", "--json", "--thread", "burnt")
    assert ended.code == 3, ended
    assert ended.json["status"] == "failed"
    assert "the model is on fire" in ended.json["error"], ended
    assert "the run failed" in ended.err.splitlines()[-1], ended
    shown = await cli(app, "show", "burnt")
    assert "on fire" in shown.out, shown


async def test_a_tool_that_fails_shows_in_the_progress(app: App) -> None:
    def broken() -> str:
        raise ValueError("no such order")

    async with app.worker(agent([broken], [call("broken", "c1")])):
        ended = await cli(app, "run", "agent", "hi")
    assert ended.code == 0, ended
    assert re.search(r"tool:broken failed .*no such order", ended.err), ended


async def test_run_says_when_no_worker_is_there(app: App) -> None:
    arguments = ("tenxgraph_temporal.cli", "run", "story", "hi", "--thread", "alone")
    async with python_process(*arguments, env=environment(app)) as process:
        await process.until(f"no worker polls task queue {app.queue}")
        process.signal(signal.SIGINT)
        assert await process.wait() == 130, process.output
        assert "left going" in process.output
    again = await cli(app, "run", "story", "hi", "--thread", "alone")
    assert again.code == 1, again
    assert "is open" in one_line(again)
    refused = await cli(app, "threads", "delete", "alone")
    assert refused.code == 1, refused
    assert "stop alone --wait" in one_line(refused)
    stopped = await cli(app, "stop", "alone", "--json")
    assert stopped.json == {"thread_id": "alone", "status": "stop requested"}
    await app.client.get_workflow_handle("thread-alone").terminate()


# --- stop, resume -------------------------------------------------------------------------------------------


async def test_stop_of_a_hanging_run(app: App) -> None:
    started = asyncio.Event()

    async def hang(state: AgentState) -> Message:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with app.worker(single("hanging", hang)):
        detached = await cli(app, "run", "hanging", "hi", "--thread", "stuck", "--detach")
        assert (detached.code, detached.out) == (0, "stuck\n"), detached
        await started.wait()
        stopped = await cli(app, "stop", "stuck", "--wait")
        assert (stopped.code, stopped.out) == (0, "thread stuck: stopped\n"), stopped
        again = await cli(app, "stop", "stuck")
        assert again.code == 1, again
        assert "no run of thread 'stuck' is open" in one_line(again)

        watching = asyncio.create_task(cli(app, "run", "hanging", "hi", "--thread", "watched", "--json"))
        started.clear()
        await started.wait()
        assert (await cli(app, "stop", "watched")).code == 0
        ended = await watching
        assert ended.code == 4, ended
        assert ended.json["status"] == "stopped"


async def test_resume_answers_the_question_that_run_and_show_name(app: App) -> None:
    async with app.worker(asking()):
        arguments = ("tenxgraph_temporal.cli", "run", "asking", "hi", "--thread", "asked")
        async with python_process(*arguments, env=environment(app)) as process:
            line = await process.until("resume asked --id")
            interrupt_id = line.split("--id ")[1].split()[0]
            shown = (await cli(app, "show", "asked", "--json")).json
            assert [asked["id"] for asked in shown["interrupts"]] == [interrupt_id], shown
            assert "Refund 5 USD?" in (await cli(app, "show", "asked")).out
            listed = await cli(app, "threads", "--paused", "--json")
            assert [info["thread_id"] for info in listed.json["threads"]] == ["asked"], listed

            wrong = await cli(app, "resume", "asked", "--value", "true", "--id", "int_nothing", "--checked")
            assert wrong.code == 1, wrong
            assert "no open interrupt" in one_line(wrong)
            sent = await cli(app, "resume", "asked", "--json", '"yes"', "--output", "json")
            assert sent.code == 0, sent
            assert sent.json == {"thread_id": "asked", "interrupt_id": None, "status": "sent"}
            assert await process.wait() == 0, process.output
            assert "the answer was yes" in process.output
        closed = await cli(app, "resume", "asked", "--value", "1")
        assert closed.code == 1, closed
        assert "no run of thread 'asked' is open" in one_line(closed)


# --- threads ------------------------------------------------------------------------------------------------


async def test_threads_list_pages_and_filters(app: App) -> None:
    for number in range(5):
        await put_thread(
            app, f"t{number}", "alice" if number % 2 else "bob", "interrupted_before" if number == 1 else ""
        )
    everything = await cli(app, "threads", "--json")
    assert [info["thread_id"] for info in everything.json["threads"]] == ["t4", "t3", "t2", "t1", "t0"], everything
    assert everything.json["next_before"] is None

    seen, before = [], None
    while True:
        page = await cli(app, "threads", "list", "--limit", "2", "--json", *(["--before", before] if before else []))
        seen.append([info["thread_id"] for info in page.json["threads"]])
        before = page.json["next_before"]
        if before is None:
            break
    assert seen == [["t4", "t3"], ["t2", "t1"], ["t0"]]

    hers = await cli(app, "threads", "--user", "alice", "--json")
    assert [info["thread_id"] for info in hers.json["threads"]] == ["t3", "t1"], hers
    paused = await cli(app, "threads", "list", "--paused")
    assert "t1" in paused.out, paused
    assert "t0" not in paused.out, paused


async def test_threads_versions_and_delete(app: App) -> None:
    thread_id, _ = await app.run(agent([], answer="bye"))
    versions = await cli(app, "threads", "versions", thread_id, "--json")
    assert versions.code == 0, versions
    numbers = [version["version"] for version in versions.json["versions"]]
    assert numbers == sorted(numbers, reverse=True), versions
    assert numbers[-1] == 1, versions
    gone = await cli(app, "threads", "delete", thread_id)
    assert (gone.code, gone.out) == (0, f"thread {thread_id} deleted\n"), gone
    again = await cli(app, "threads", "delete", thread_id)
    assert again.code == 1, again
    assert "there is no thread" in one_line(again)
    assert await app.store.load_head(thread_id, None) is None


async def test_purge_keeps_what_is_young_or_open(app: App) -> None:
    for thread_id in ("old", "young"):
        await put_thread(app, thread_id)
    async with app.worker(asking()):
        run = await app.start("asking", "open")

        async def paused() -> bool:
            return bool(await run.interrupts())

        await eventually(paused)
        async with app.store.pool.acquire() as connection:
            await connection.execute(
                f"UPDATE {app.store.schema}.threads SET updated_at = now() - interval '40 days' "
                "WHERE thread_id <> 'young'"
            )
        purged = await cli(app, "threads", "purge", "--older-than", "30d", "--json")
        assert purged.code == 0, purged
        assert (purged.json["deleted"], purged.json["kept_open"]) == (1, 1), purged
        assert {info.thread_id for info in await app.store.list_threads()} == {"young", "open"}
        await run.answer("yes")
        await run.result()


# --- doctor -------------------------------------------------------------------------------------------------


def status_of(ended: Ended, check: str) -> str:
    (found,) = [finding for finding in ended.json["checks"] if finding["check"] == check]
    return str(found["status"])


async def test_doctor_finds_nothing_wrong(app: App) -> None:
    redis = app.stack.redis_url
    idle = await cli(app, "doctor", "--json", TENXGRAPH_REDIS_URL=redis)
    assert idle.code == 0, idle
    assert status_of(idle, "task queue") == "warning", idle
    async with app.worker(asking()):

        async def polled() -> bool:
            return status_of(await cli(app, "doctor", "--json"), "task queue") == "ok"

        await eventually(polled)
        well = await cli(app, "doctor", "--json", TENXGRAPH_REDIS_URL=redis)
    assert well.code == 0, well
    assert well.json["ok"] is True
    assert {finding["status"] for finding in well.json["checks"]} == {"ok"}, well
    text = await cli(app, "doctor")
    assert text.code == 0, text
    assert "Python 3" in text.out, text


@pytest.mark.parametrize(
    ("keys", "detail"),
    [
        ("", "off: TENXGRAPH_ENCRYPTION_KEYS is not set"),
        (f"k2:{'A' * 43}=,k1:{'B' * 42}A=", "on: encrypts with k2, decrypts with k2, k1"),
        (f"plain,k1:{'A' * 43}=", "off for what is new; decrypts with k1"),
    ],
)
async def test_doctor_says_what_is_encrypted(app: App, keys: str, detail: str) -> None:
    ended = await cli(app, "doctor", "--json", TENXGRAPH_ENCRYPTION_KEYS=keys)
    assert ended.code == 0, ended
    (found,) = [check for check in ended.json["checks"] if check["check"] == "encryption"]
    assert found["detail"].startswith(detail), ended
    assert "AAAA" not in ended.out, ended


async def test_a_codec_server_without_keys_is_one_line(app: App) -> None:
    ended = await cli(app, "codec-server", "--port", "0")
    assert ended.code == 1, ended
    assert "set TENXGRAPH_ENCRYPTION_KEYS" in one_line(ended)


@pytest.mark.parametrize(
    ("broken", "check", "remedy"),
    [
        ("postgres", "postgres", "TENXGRAPH_DATABASE_URL"),
        ("temporal", "temporal", "tenxgraph-temporal dev"),
        ("namespace", "namespace", "TEMPORAL_NAMESPACE"),
        ("schema", "schema", "tenxgraph-temporal setup"),
        ("redis", "redis", "TENXGRAPH_REDIS_URL"),
        ("unset", "postgres", "TENXGRAPH_DATABASE_URL"),
        ("setting", "settings", "TENXGRAPH_TYPO"),
    ],
)
async def test_doctor_names_what_is_broken_and_the_remedy(app: App, broken: str, check: str, remedy: str) -> None:
    changes: dict[str, dict[str, str | None]] = {
        "postgres": {"TENXGRAPH_DATABASE_URL": f"postgresql://postgres@127.0.0.1:{free_port()}/postgres"},
        "temporal": {"TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}"},
        "namespace": {"TEMPORAL_NAMESPACE": "nowhere"},
        "schema": {"TENXGRAPH_DATABASE_SCHEMA": "never_set_up"},
        "redis": {"TENXGRAPH_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"},
        "unset": {"TENXGRAPH_DATABASE_URL": None},
        "setting": {"TENXGRAPH_TYPO": "1"},
    }
    ended = await cli(app, "doctor", "--json", **changes[broken])
    assert ended.code == 1, ended
    assert ended.json["ok"] is False
    (found,) = [finding for finding in ended.json["checks"] if finding["status"] == "failed"]
    assert found["check"] == check, ended
    assert remedy in found["remedy"] + found["detail"], ended
    assert one_line(ended).endswith(f"failed: {check}"), ended
    text = await cli(app, "doctor", **changes[broken])
    assert text.code == 1, text
    assert "-> " in text.out, text


@pytest.mark.parametrize("command", [("threads",), ("setup",), ("show", "t")])
async def test_an_unreachable_database_is_one_line(app: App, command: tuple[str, ...]) -> None:
    address = f"postgresql://postgres@127.0.0.1:{free_port()}/postgres"
    ended = await cli(app, *command, TENXGRAPH_DATABASE_URL=address)
    assert ended.code == 1, ended
    assert "Postgres cannot be reached" in one_line(ended)


@pytest.mark.parametrize("command", [("run", "g", "hi"), ("stop", "t"), ("resume", "t", "--value", "1")])
async def test_an_unreachable_temporal_is_one_line(app: App, command: tuple[str, ...]) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = await cli(app, *command, TEMPORAL_ADDRESS=address)
    assert ended.code == 1, ended
    assert f"no Temporal server at {address}" in one_line(ended)


# --- dev, worker --------------------------------------------------------------------------------------------


def processes_of(marker: str) -> list[str]:
    """Command lines and working directories that name ``marker``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if marker in line or marker in str((entry / "cwd").readlink()):
                    found.append(f"{entry.name} {line}")
            except OSError:
                continue
    return found


@asynccontextmanager
async def dev(app: App, directory: Path, *arguments: str) -> AsyncIterator[Any]:
    # It must not need, or be misled by, an environment that points elsewhere.
    env = {**environment(app), "TEMPORAL_ADDRESS": "127.0.0.1:1", "TEMPORAL_NAMESPACE": "nowhere"}
    command = ("tenxgraph_temporal.cli", "dev", *arguments, "--dir", str(directory))
    async with python_process(*command, env=env) as process:
        yield process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_dev_ends_with_everything_it_started(app: App, tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "stack"
    async with dev(app, directory) as process:
        line = await process.until("export ")
        await process.until("ready")
        env = dict(pair.split("=", 1) for pair in line.removeprefix("export ").split())
        assert set(env) == {"TEMPORAL_ADDRESS", "TENXGRAPH_DATABASE_URL", "TENXGRAPH_REDIS_URL"}
        assert processes_of(str(directory)) != []
        well = await cli(app, "doctor", "--json", **env)
        assert well.code == 0, well
        process.signal(number)
        assert await process.wait() == 0, process.output
    assert processes_of(str(directory)) == []


async def test_dev_serves_graphs(app: App, tmp_path: Path, world: World) -> None:
    directory = tmp_path / "stack"
    os.environ["OUTSIDE_WORLD"] = world.address
    try:
        async with dev(app, directory, STORY) as process:
            line = await process.until("export ")
            await process.until("worker ready")
            env = dict(pair.split("=", 1) for pair in line.removeprefix("export ").split())
            ended = await cli(app, "run", "story", "charge me", **env)
            assert (ended.code, ended.out) == (0, "Your card was charged.\n"), ended
            assert await process.terminate() == 0, process.output
    finally:
        del os.environ["OUTSIDE_WORLD"]
    assert processes_of(str(directory)) == []


async def test_dev_that_is_ended_while_it_starts_leaves_nothing(app: App, tmp_path: Path) -> None:
    directory = tmp_path / "stack"
    async with dev(app, directory) as process:
        await process.until("starting")
        await asyncio.sleep(0.2)
        assert await process.terminate() == 0, process.output
    assert processes_of(str(directory)) == []


async def test_dev_says_when_its_port_is_taken(app: App) -> None:
    port = app.stack.temporal.port
    ended = await cli(app, "dev", "--temporary", "--temporal-port", str(port))
    assert ended.code == 1, ended
    assert f"port {port} of 127.0.0.1 is in use" in ended.err, ended


async def test_worker_and_dev_refuse_what_is_no_graph(app: App) -> None:
    for command in ("worker", "dev"):
        ended = await cli(app, command, "tenxgraph_temporal.tests.support.graphs:nothing")
        assert ended.code == 1, ended
        assert "'nothing' does not exist" in one_line(ended)


# --- usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("run",),
        ("run", "g", "hi", "--config", "{"),
        ("run", "g", "hi", "--state", "[1]"),
        ("resume", "t"),
        ("resume", "t", "--value", "yes"),
        ("show", "t", "--version", "0"),
        ("threads", "--before", "yesterday"),
        ("threads", "purge"),
        ("threads", "purge", "--older-than", "soon"),
        ("worker",),
        ("codec-server",),
        ("codec-server", "--port", "70000"),
    ],
)
async def test_wrong_usage_exits_with_2(app: App, arguments: tuple[str, ...]) -> None:
    ended = await cli(app, *arguments)
    assert ended.code == 2, ended
    assert ended.out == "", ended
    assert ended.err != "", ended


@pytest.mark.parametrize(
    "command",
    ["dev", "worker", "setup", "run", "stop", "resume", "show", "doctor", "codec-server", "threads", "threads purge"],
)
async def test_each_command_has_help_with_an_example(app: App, command: str) -> None:
    ended = await cli(app, *command.split(), "--help")
    assert ended.code == 0, ended
    assert f"Example: tenxgraph-temporal {command.split()[0]}" in ended.out, ended


async def test_without_typer_one_line_says_what_to_install(app: App) -> None:
    program = "import sys; sys.modules['typer'] = None; from tenxgraph_temporal import cli; sys.exit(cli.main())"
    ended = await execute((), environment(app), ("-c", program))
    assert ended.code == 1, ended
    assert "install 'tenxgraph-temporal[cli]'" in one_line(ended)
