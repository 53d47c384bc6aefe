"""The command line, as real processes against real servers: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import re
import signal
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

from tenxgraph_temporal.examples.process import python_process
from tenxgraph_temporal.runtime.state import AgentState, Message

from ..support.app import App, eventually
from ..support.cli import STORY, asking, cli, environment, execute, one_line, put_thread, single, status_of
from ..support.graphs import agent, call
from ..support.world import World

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
