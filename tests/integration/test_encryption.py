"""Encryption on real servers: Temporal never sees what users say, and keys may change while runs are open."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message as Proto
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory, WorkflowUpdateFailedError
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, PayloadCodec
from temporalio.worker import Worker

from tenxgraph_temporal import (
    AgentState,
    EncryptionCodec,
    EncryptionKeys,
    GraphClient,
    RunHandle,
    StateGraph,
    TenxGraphPlugin,
    ToolContext,
    WirePlugin,
    interrupt,
    tool,
)
from tenxgraph_temporal.examples.process import python_process
from tenxgraph_temporal.runtime.client import RunFailed
from tenxgraph_temporal.runtime.devstack._temporal import _executable
from tenxgraph_temporal.runtime.errors import EncryptionError, InputError, SettingsError
from tenxgraph_temporal.runtime.progress import follow, pending_steps

from ..support.app import App, eventually
from ..support.graphs import agent, call

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
K1 = EncryptionKeys({"k1": OLD})
K2 = EncryptionKeys({"k2": NEW})
BOTH = EncryptionKeys({"k2": NEW, "k1": OLD})
REFUNDS = "tenxgraph_temporal.examples.refund_approval:graph"

SAID = "My card is hush-said"
CONFIGURED = "hush-configured"
ASKED = "hush-asked"
ANSWERED = "hush-answered"
UPDATED = "hush-updated"
WRONG = "hush-wrong"
REPORTED = "hush-reported"
ARGUED = "hush-argued"
NOWHERE = "hush-nowhere"


def variable(keys: EncryptionKeys) -> str:
    return ",".join(f"{key_id}:{base64.b64encode(key).decode()}" for key_id, key in keys.items())


async def with_keys(app: App, keys: EncryptionKeys) -> App:
    """The same corner of the servers, seen by a client with these keys."""
    client = await Client.connect(app.stack.temporal_address, plugins=[WirePlugin(keys=keys)])
    other = App(stack=app.stack, client=client, store=app.store, logs=app._logs)
    other.graphs._task_queue = other.queue = app.queue
    other.max_cached_workflows = 100  # see test_interrupts
    return other


@pytest.fixture
async def encrypted(app: App) -> AsyncIterator[App]:
    other = await with_keys(app, K1)
    yield other
    await other.replay_all()


async def raw_history(app: App, run: RunHandle) -> WorkflowHistory:
    """As the server has it: by a client that knows nothing of us."""
    client = await Client.connect(app.stack.temporal_address)
    return await client.get_workflow_handle(run.workflow.id).fetch_history()


def texts(message: Proto) -> bytes:
    return message.SerializeToString()


def readable(history: WorkflowHistory) -> bytes:
    return b"".join(map(texts, history.events))


def in_clear(history: WorkflowHistory) -> list[str]:
    """Where payloads are that are not encrypted."""
    return [where for event in history.events for where in _in_clear(json_format.MessageToDict(event), "")]


def _in_clear(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, dict) and "encoding" in (value.get("metadata") or {}):
        if base64.b64decode(value["metadata"]["encoding"]) != b"binary/encrypted":
            yield where
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name != "searchAttributes":
                yield from _in_clear(inner, where if name == "payloads" else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _in_clear(inner, where)


def key_ids(history: WorkflowHistory) -> set[str]:
    return {found.decode() for found in re.findall(rb"encryption-key-id\x12.(k\d)", readable(history))}


async def paused(run: RunHandle, count: int = 1) -> None:
    async def enough() -> bool:
        return len(await run.interrupts()) == count

    await eventually(enough)


# --- what Temporal sees -------------------------------------------------------------------------------------


async def test_nothing_that_users_say_is_in_a_history(encrypted: App) -> None:
    """Input, config, answers by signal and update, tool errors: all cross, and none can be read."""
    reported = asyncio.Event()

    async def ask(what: str, context: ToolContext) -> str:
        answer = interrupt({"what": ASKED}, message=ASKED)
        context.heartbeat(REPORTED)
        reported.set()
        return f"{answer} {what}"

    async def broken(what: str) -> str:
        raise ValueError(WRONG)

    graph = agent(
        [ask, broken],
        [call("ask", "c1", what=ARGUED), call("ask", "c2", what=ARGUED), call("broken", "c3", what=ARGUED)],
    )
    thread_id = encrypted.thread()
    async with encrypted.worker(graph):
        run = await encrypted.start("agent", thread_id, SAID, config={"secret": CONFIGURED})
        await paused(run, 2)
        first, second = await run.interrupts()
        unknowing = (await Client.connect(encrypted.stack.temporal_address)).get_workflow_handle(run.workflow.id)
        with pytest.raises(InputError, match=NOWHERE):
            await run.answer(1, interrupt_id=NOWHERE)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await unknowing.execute_update("resume", {"interrupt_id": "elsewhere", "value": 1})
        assert "elsewhere" not in str(refused.value.cause), "a refusal crosses Temporal, too"
        await run.workflow.signal("resume", {"interrupt_id": first.interrupt_id, "value": ANSWERED})
        assert await run.answer(UPDATED, interrupt_id=second.interrupt_id) == second.interrupt_id
        await run.result()
        assert (await run.workflow.query("status"))["status"] == "running"
    state = await encrypted.state(thread_id)
    said = " ".join(message.text() for message in state.context)
    assert all(text in said for text in (SAID, ANSWERED, UPDATED, WRONG)), said

    history = await raw_history(encrypted, run)
    decoded = await encrypted.client.data_converter.decode(
        history.events[0].workflow_execution_started_event_attributes.input.payloads
    )
    assert SAID in json.dumps(decoded), "the history does hold it, for those with the key"
    assert CONFIGURED in json.dumps(decoded)
    assert b"hush" not in readable(history), history.to_json()
    clear = set(in_clear(history)) - {"args"}  # of the update that the client without keys sent
    assert clear <= {"data"}, "what the SDK notes of a local activity: its number and type"
    assert key_ids(history) == {"k1"}
    description = (
        await (await Client.connect(encrypted.stack.temporal_address)).get_workflow_handle(run.workflow.id).describe()
    )
    assert b"hush" not in texts(description.raw_description)


async def test_errors_and_traces_are_not_in_a_history(encrypted: App) -> None:
    def explode(state: AgentState) -> None:
        raise ValueError(WRONG)

    builder = StateGraph(name="exploding")
    builder.add_node("only", explode)
    builder.set_entry_point("only")
    async with encrypted.worker(builder.compile()):
        run = await encrypted.start("exploding", encrypted.thread(), SAID)
        with pytest.raises(RunFailed, match=WRONG) as caught:
            await run.result()
    assert caught.value.code == "NODE_001"
    history = await raw_history(encrypted, run)
    assert b"hush" not in readable(history), history.to_json()
    assert b"explode" not in readable(history), "the stack trace"
    failed = history.events[-1].workflow_execution_failed_event_attributes.failure
    assert failed.application_failure_info.type == "NODE_001", "codes stay readable"
    events = [event async for event in follow(encrypted.client, run.workflow.id, None)]
    assert any(WRONG in event.detail for event in events), "progress is shown to those with the key"


async def test_without_keys_it_would_be_there(app: App) -> None:
    """The tests above can fail."""
    async with app.worker(agent([])):
        run = await app.start("agent", app.thread(), SAID)
        await run.result()
    assert SAID.encode() in readable(await raw_history(app, run))


# --- keys that change ---------------------------------------------------------------------------------------


async def test_rotation_while_a_run_is_open(app: App) -> None:
    """Begun under the old key, finished by a worker that has it only to decrypt."""
    old, new = await with_keys(app, K1), await with_keys(app, BOTH)
    thread_id = app.thread()
    async with app.process(REFUNDS, TENXGRAPH_ENCRYPTION_KEYS=variable(K1)) as worker:
        run = await old.start("refunds", thread_id, SAID)
        await paused(run)
        await worker.terminate()
    async with app.process(REFUNDS, TENXGRAPH_ENCRYPTION_KEYS=variable(BOTH)):
        resumed = new.graphs.handle(thread_id)
        await resumed.answer({"approved": True})
        await resumed.result()
    assert key_ids(await raw_history(app, run)) == {"k1", "k2"}
    with pytest.raises(EncryptionError, match=r"'k2', and this process has the keys k1; set TENXGRAPH_ENCRYPTION_KEYS"):
        await old.graphs.handle(thread_id).result()
    await new.replay_all()


async def test_switched_on_while_a_run_is_open(app: App) -> None:
    keyed = await with_keys(app, K1)
    thread_id = app.thread()
    async with app.process(REFUNDS) as worker:
        run = await app.graphs.start("refunds", thread_id, SAID)
        await paused(run)
        await worker.terminate()
    async with app.process(REFUNDS, TENXGRAPH_ENCRYPTION_KEYS=variable(K1)):
        await keyed.graphs.handle(thread_id).answer({"approved": True, "note": ANSWERED})
        await keyed.graphs.handle(thread_id).result()
    history = await raw_history(app, run)
    assert SAID.encode() in readable(history)
    assert ANSWERED.encode() not in readable(history)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (EncryptionKeys(), "encrypted with the key 'k1', and this process has no keys; set TENXGRAPH_ENCRYPTION_KEYS"),
        (K2, "encrypted with the key 'k1', and this process has the keys k2; set TENXGRAPH_ENCRYPTION_KEYS"),
        (EncryptionKeys({"k1": NEW}), "cannot be decrypted with the key 'k1'"),
    ],
    ids=["no keys", "another key", "another key of that id"],
)
async def test_a_worker_that_lacks_the_key(app: App, encrypted: App, keys: EncryptionKeys, problem: str) -> None:
    """It says so, in its log and in the history; the run waits for a worker that has it, and loses nothing."""
    thread_id = app.thread()
    async with app.process(REFUNDS, TENXGRAPH_ENCRYPTION_KEYS=variable(keys)) as worker:
        run = await encrypted.start("refunds", thread_id, SAID)
        assert problem in await worker.until(problem)
        assert SAID not in worker.output

        async def told() -> Any:
            history = await raw_history(app, run)
            return [e for e in history.events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED]

        (event, *_) = await eventually(told)
        assert problem in event.workflow_task_failed_event_attributes.failure.message, "for all to read"
        async for step in follow(encrypted.client, run.workflow.id, None):
            assert step.activity == "workflow task"
            assert problem in step.detail
            break
        await run.workflow.signal("resume", {"value": {"approved": True}})
    async with app.process(REFUNDS, TENXGRAPH_ENCRYPTION_KEYS=variable(K1)):
        await run.result()
    assert "Refunded" in " ".join(message.text() for message in (await app.state(thread_id)).context)


async def test_a_tool_on_a_worker_that_lacks_the_key(app: App, encrypted: App) -> None:
    """As many attempts as it takes, for they say nothing about the tool; then a worker comes that has the key."""

    @tool(task_queue=f"{app.queue}-gpu")
    def render(what: str) -> str:
        return f"rendered {what}"

    graph = agent([render], [call("render", "c1", what=ARGUED)])
    thread_id = app.thread()
    async with encrypted.worker(graph):
        async with app.worker(graph, task_queue=f"{app.queue}-gpu"):
            run = await encrypted.start("agent", thread_id, SAID)

            async def told() -> Any:
                return [s for s in await pending_steps(encrypted.client, run.workflow.id) if s.attempt > 1]

            (step, *_) = await eventually(told)
            assert step.activity == "tool:render"

            async def given_up_once() -> Any:
                return any(
                    event.event_type == EventType.EVENT_TYPE_TIMER_STARTED
                    for event in (await run.workflow.fetch_history()).events
                )

            await eventually(given_up_once, timeout=60)
        async with encrypted.worker(graph, task_queue=f"{app.queue}-gpu"):
            await run.result()
    assert f"rendered {ARGUED}" in [message.text() for message in (await app.state(thread_id)).context]


async def test_a_client_that_lacks_the_key(app: App, encrypted: App) -> None:
    async with encrypted.worker(agent([])):
        run = await encrypted.start("agent", app.thread(), SAID)
        await run.result()
    with pytest.raises(EncryptionError, match="this process has no keys"):
        await app.graphs.handle(run.thread_id).result()


# --- a codec of one's own -----------------------------------------------------------------------------------


class Compressing(PayloadCodec):
    """Compresses, then encrypts: an order that only its author can know."""

    def __init__(self) -> None:
        self.inner = EncryptionCodec(K1)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self.inner.encode(
            [Payload(metadata={"encoding": b"zlib"}, data=zlib.compress(p.SerializeToString())) for p in payloads]
        )

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(zlib.decompress(p.data)) if p.metadata["encoding"] == b"zlib" else p
            for p in await self.inner.decode(payloads)
        ]


async def test_a_codec_of_ones_own(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both plugins keep it, and next to the setting it has to be asked for."""
    theirs = DataConverter(
        payload_codec=Compressing(), failure_converter_class=DefaultFailureConverterWithEncodedAttributes
    )
    address = app.stack.temporal_address
    monkeypatch.setenv("TENXGRAPH_ENCRYPTION_KEYS", variable(K1))
    with pytest.raises(SettingsError, match=r"payload codec of its own \(Compressing\)"):
        await Client.connect(address, data_converter=theirs, plugins=[WirePlugin()])
    client = await Client.connect(address, data_converter=theirs, plugins=[WirePlugin(keys=EncryptionKeys())])
    assert client.data_converter.payload_codec is theirs.payload_codec
    monkeypatch.delenv("TENXGRAPH_ENCRYPTION_KEYS")
    own = App(stack=app.stack, client=client, store=app.store, logs=app._logs)
    async with own.worker(agent([])):
        run = await own.start("agent", own.thread(), SAID * 1000)
        await run.result()
    history = await raw_history(app, run)
    assert b"hush" not in readable(history)
    assert len(readable(history)) < 1000 * len(SAID), "it was compressed first"
    await own.replay_all()


async def test_a_plain_client_encrypts_where_the_variable_is_set(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """By either plugin, without another word: nobody writes in clear for lack of an argument."""
    monkeypatch.setenv("TENXGRAPH_ENCRYPTION_KEYS", variable(K1))
    wire = await Client.connect(app.stack.temporal_address, plugins=[WirePlugin()])
    plugin = TenxGraphPlugin([agent([])], app.store)
    plain = await Client.connect(app.stack.temporal_address)
    async with Worker(plain, task_queue=app.queue, plugins=[plugin]):
        run = await GraphClient(wire, task_queue=app.queue).start("agent", app.thread(), SAID)
        await run.result()
    history = await raw_history(app, run)
    assert set(in_clear(history)) <= {"data"}, history.to_json()


# --- the codec server, asked as Temporal's own programs do --------------------------------------------------


@asynccontextmanager
async def codec_server(**settings: str) -> AsyncIterator[str]:
    variables = {"TENXGRAPH_ENCRYPTION_KEYS": variable(K1), **settings}
    async with python_process("tenxgraph_temporal.cli", "codec-server", "--port", "0", env=variables) as process:
        yield (await process.until("codec server ready: ")).split()[-1]
        assert await process.terminate() == 0, process.output
        assert "hush" not in process.output
        assert "s3cret" not in process.output


async def temporal(app: App, *arguments: str, codec: str, tmp_path: Path, auth: str = "") -> str:
    """Temporal's command line, which takes the server's address and the codec's from the environment."""
    environment = {
        "TEMPORAL_ADDRESS": app.stack.temporal_address,
        "TEMPORAL_CODEC_ENDPOINT": codec,
        "TEMPORAL_CODEC_AUTH": auth,
        "HOME": str(tmp_path),
    }
    process = await asyncio.create_subprocess_exec(
        str(_executable()),
        *arguments,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    return output


async def test_temporals_command_line_through_the_codec_server(encrypted: App, tmp_path: Path) -> None:
    """Start, show, signal and result, with nothing in clear on the way."""

    def ask(what: str) -> str:
        return str(interrupt({"what": ASKED}))

    thread_id = encrypted.thread()
    workflow = f"thread-{thread_id}"
    run_input = {"graph": "agent", "thread_id": thread_id, "input": {"messages": [{"role": "user", "content": SAID}]}}
    token = {"TENXGRAPH_CODEC_SERVER_TOKEN": "s3cret-token"}
    async with encrypted.worker(agent([ask], [call("ask", "c1", what=ARGUED)])), codec_server(**token) as codec:

        async def run_temporal(*arguments: str) -> str:
            return await temporal(encrypted, *arguments, codec=codec, tmp_path=tmp_path, auth="Bearer s3cret-token")

        await run_temporal(
            *("workflow", "start", "--type", "GraphRun", "--task-queue", encrypted.queue, "--workflow-id", workflow),
            *("--input", json.dumps(run_input)),
        )
        run = encrypted.graphs.handle(thread_id)
        await paused(run)
        await run_temporal(
            *("workflow", "signal", "--workflow-id", workflow, "--name", "resume"),
            *("--input", json.dumps({"value": ANSWERED})),
        )
        result = await run_temporal("workflow", "result", "--workflow-id", workflow, "--output", "json")
        assert json.loads(result)["result"]["thread_id"] == thread_id
        shown = await run_temporal("workflow", "show", "--workflow-id", workflow, "--output", "json")
        decoded = WorkflowHistory.from_json(workflow, shown)
        assert SAID.encode() in readable(decoded), shown
        assert ANSWERED.encode() in readable(decoded), shown
        assert not key_ids(decoded), shown
        status = await run_temporal("workflow", "query", "--workflow-id", workflow, "--type", "status")
        assert thread_id in status, status
        without = await temporal(
            encrypted, "workflow", "show", "--workflow-id", workflow, "--output", "json", codec="", tmp_path=tmp_path
        )
        assert SAID.encode() not in readable(WorkflowHistory.from_json(workflow, without))
    history = await raw_history(encrypted, run)
    assert b"hush" not in readable(history), history.to_json()
