"""Encryption on real servers: Temporal never sees what users say, and keys may change while runs are open."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowHistory, WorkflowUpdateFailedError
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, PayloadCodec
from temporalio.worker import Worker

from tenxgraph_temporal import (
    AgentState,
    EncryptionCodec,
    EncryptionKeys,
    GraphClient,
    StateGraph,
    TenxGraphPlugin,
    ToolContext,
    WirePlugin,
    interrupt,
)
from tenxgraph_temporal.examples.process import python_process
from tenxgraph_temporal.runtime.client import RunFailed
from tenxgraph_temporal.runtime.devstack._temporal import _executable
from tenxgraph_temporal.runtime.errors import InputError, SettingsError
from tenxgraph_temporal.runtime.progress import follow

from ..support.app import App
from ..support.encryption import ANSWERED, ARGUED, K1, SAID, in_clear, key_ids, raw_history, readable, texts, variable
from ..support.graphs import agent, call
from ..support.pausing import until_paused

CONFIGURED = "hush-configured"
ASKED = "hush-asked"
UPDATED = "hush-updated"
WRONG = "hush-wrong"
REPORTED = "hush-reported"
NOWHERE = "hush-nowhere"


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
        await until_paused(run, 2)
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
        await until_paused(run)
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
