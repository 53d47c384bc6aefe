"""The ledger's rules end to end: replay, malformed rows, its own failures, what tools may return, late results."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tenxgraph_temporal import AgentState, CompiledGraph, Message, Retry, ToolContext, tool
from tenxgraph_temporal.runtime.errors import StoreError, StoreUnavailable
from tenxgraph_temporal.runtime.state.blocks import TextBlock
from tenxgraph_temporal.runtime.storage.contract import Claimed, Intent, LedgerEntry

from ..support.app import App, eventually
from ..support.graphs import agent, asks, call, results
from ..support.metrics import Counters


class Delegate:
    """The test's store, with some of its methods replaced."""

    def __init__(self, store: Any, **methods: Callable[..., Any]) -> None:
        self._store = store
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def recorded_before(app: App, envelope: Any, ran: list[str]) -> Any:
    """A graph whose only call has a ledger row before it runs."""

    def once() -> str:
        ran.append("ran")
        return "ran"

    asked = asks(call("once", "1"))

    async def model(state: AgentState, config: dict[str, Any]) -> Any:
        if state.context[-1].role == "tool":
            return "done"
        entry = LedgerEntry(ledger_key=f"{asked.message_id}:1", envelope=envelope, tool="once")
        await app.store.record(config["thread_id"], entry)
        return asked

    graph = agent([once])
    with_model(graph, model)
    return graph


def with_model(graph: CompiledGraph, model: Callable[..., Any]) -> None:
    """Give the graph another model, an async function of state and config."""
    graph.nodes["model"] = dataclasses.replace(
        graph.nodes["model"], function=model, is_async=True, arguments={"state": "state", "config": "config"}
    )


async def test_a_hit_is_replayed_and_says_so(app: App, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []
    counters = Counters()
    envelope = {"__kind__": "message", "value": Message.tool_message([TextBlock(text="from before")]).model_dump()}
    graph = recorded_before(app, envelope, ran)
    thread_id = app.thread()
    with caplog.at_level(logging.INFO):
        async with app.worker(graph, metrics=counters.metrics):
            run = await app.start("agent", thread_id)
            await run.result()
    assert ran == []
    assert results(await app.state(thread_id)) == ["from before"]
    assert "recorded before; replaying its result" in caplog.text
    outcomes = [
        event.activity_task_completed_event_attributes.result.payloads[0].data
        for event in (await run.workflow.fetch_history()).events
        if event.HasField("activity_task_completed_event_attributes")
    ]
    assert b'{"status":"replayed"}' in outcomes
    assert counters["tenxgraph.ledger.hits"] == 1
    assert [c.replays for c in await app.store.calls(thread_id)] == [1]


@pytest.mark.parametrize(
    "envelope",
    [
        {},
        [],
        "text",
        7,
        {"__kind__": "message"},
        {"__kind__": "other", "value": 1},
        {"__kind__": "message", "value": {"role": "wizard"}},
        {"__kind__": "message", "value": {"role": "user", "content": "hi"}},
        {"__kind__": "message", "value": None},
        {"__kind__": "raw", "value": 1, "state": []},
    ],
)
async def test_only_a_well_formed_envelope_is_a_hit(app: App, envelope: Any, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []
    await app.run(recorded_before(app, envelope, ran))
    assert ran == ["ran"]
    assert "is not well formed; it counts as no record" in caplog.text


@pytest.mark.parametrize(("value", "shown"), [(None, "null"), ("text", "text"), ({"a": 1}, '{"a":1}')])
async def test_a_raw_envelope_is_a_hit(app: App, value: Any, shown: str) -> None:
    ran: list[str] = []
    _, state = await app.run(recorded_before(app, {"__kind__": "raw", "value": value}, ran))
    assert ran == []
    assert results(state) == [shown]


async def test_a_read_failure_counts_as_no_record(app: App, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: Any) -> Any:
        raise StoreError("the table is locked away")

    ran: list[int] = []

    def act(n: int) -> str:
        ran.append(n)
        return "done it"

    counters = Counters()
    graph = agent([act], [call("act", "1", n=7)])
    thread_id = app.thread()
    store: Any = Delegate(app.store, load_call=broken)
    async with app.worker(graph, store=store, metrics=counters.metrics):
        await (await app.start("agent", thread_id)).result()
    assert ran == [7]
    assert results(await app.state(thread_id)) == ["done it"]
    assert "counts as no record" in caplog.text
    assert counters["tenxgraph.ledger.read_failures"] == 1


@pytest.mark.parametrize("error", [StoreError("disk full"), StoreUnavailable("gone")])
async def test_a_write_failure_does_not_stop_the_run(
    app: App, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> Any:
        raise error

    ran: list[str] = []

    def act(state: AgentState) -> str:
        ran.append("ran")
        return "the result"

    counters = Counters()
    graph = agent([act], [call("act", "1")])
    thread_id = app.thread()
    store: Any = Delegate(app.store, record=broken)
    async with app.worker(graph, store=store, metrics=counters.metrics):
        await (await app.start("agent", thread_id)).result()
    assert ran == ["ran"]
    assert results(await app.state(thread_id)) == ["the result"]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert any("COMPLETED but could not be recorded" in record.getMessage() for record in errors)
    assert counters["tenxgraph.ledger.unrecorded"] == 1
    # The commit that followed recorded it after all.
    assert [c.status for c in await app.store.calls(thread_id)] == ["finished"]


async def test_lost_connections_are_retried_without_running_the_tool_again(app: App) -> None:
    ran: list[str] = []

    async def act() -> str:
        ran.append("ran")
        await app.store.pool.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE $1",
            f'%"{app.store.schema}"%',
        )
        return "done"

    _, state = await app.run(agent([act], [call("act", "1")]))
    assert ran == ["ran"]
    assert results(state) == ["done"]


async def test_a_late_result_loses(app: App, caplog: pytest.LogCaptureFixture) -> None:
    finished = asyncio.Event()

    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)  # longer than it is given to clean up
        finished.set()
        return "late"

    graph = agent([stubborn], [call("stubborn", "1")])
    thread_id = app.thread()
    async with app.worker(graph, cancel_grace=datetime.timedelta(seconds=0.1)):
        await (await app.start("agent", thread_id, config={"tool_timeout": 0.2})).result()
        await asyncio.wait_for(finished.wait(), 10)
    (record,) = await app.store.calls(thread_id)
    assert record.status == "timeout"
    assert "NODE_TIMEOUT_002" in results(await app.state(thread_id))[0]
    late = LedgerEntry(ledger_key=record.ledger_key, envelope={"__kind__": "raw", "value": "late"})
    assert await app.store.record(thread_id, late) == record.envelope


@pytest.mark.parametrize(("fails", "attempts", "outcome"), [(1, 2, "made it"), (5, 3, "failed: ConnectionError: no")])
async def test_retries_are_opt_in_and_end(app: App, fails: int, attempts: int, outcome: str) -> None:
    tried: list[int] = []
    fatally: list[int] = []

    @tool(retry=Retry(max_attempts=3, on=(ConnectionError,), interval=0.05), in_doubt="fail")
    def flaky(context: ToolContext) -> str:
        tried.append(context.attempt)
        if len(tried) <= fails:
            raise ConnectionError("no")
        return "made it"

    def fatal() -> str:
        fatally.append(1)
        raise ConnectionError("no")

    _, state = await app.run(agent([flaky, fatal], [call("flaky", "1"), call("fatal", "2")]))
    assert tried == list(range(1, attempts + 1))
    assert fatally == [1]  # no retry was asked for
    assert outcome in results(state)[0]
    assert state.context[-1].text() == "done"


async def test_an_error_that_does_not_qualify_is_not_retried(app: App) -> None:
    tried: list[int] = []

    @tool(retry=Retry(max_attempts=3, on=(ConnectionError,)))
    def picky() -> str:
        tried.append(1)
        raise ValueError("wrong customer")

    _, state = await app.run(agent([picky], [call("picky", "1")]))
    assert tried == [1]
    assert "wrong customer" in results(state)[0]


async def test_the_idempotency_key_is_the_calls_own(app: App) -> None:
    keys: list[str] = []

    def act(context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        return "ok"

    turn = [call("act", "call_1"), call("act", "call_1"), call("act", "")]
    await app.run(agent([act], turn, turn))
    await app.run(agent([act], turn))
    assert len(set(keys)) == 9
    assert all(len(key) == 45 and key.replace("_", "").isalnum() for key in keys)


async def test_an_approval_predicate_that_raises_asks(app: App) -> None:
    def predicate(arguments: dict[str, Any]) -> bool:
        return bool(arguments["nope"])

    @tool(requires_approval=predicate)
    def act() -> str:
        return "done"

    thread_id = app.thread()
    async with app.worker(agent([act], [call("act", "1")])):
        run = await app.start("agent", thread_id)

        async def asked() -> bool:
            return bool(await run.interrupts())

        await eventually(asked)
        await run.answer({"approved": True})
        await run.result()
    assert results(await app.state(thread_id)) == ["done"]


async def test_a_live_claim_is_waited_for_instead_of_running_a_second_copy(app: App) -> None:
    """Another attempt runs the call: this one waits, and takes its result."""
    ran: list[str] = []

    @tool(in_doubt="fail")
    def once() -> str:
        ran.append("ran")
        return "a second copy"

    asked = asks(call("once", "1"))
    key = f"{asked.message_id}:1"
    others: list[asyncio.Task[Any]] = []

    async def model(state: AgentState, config: dict[str, Any]) -> Any:
        if state.context[-1].role == "tool":
            return "done"
        thread_id = config["thread_id"]
        intent = Intent(ledger_key=key, owner="another attempt", lease=datetime.timedelta(seconds=30))
        assert await app.store.claim(thread_id, intent) == Claimed()

        async def finish() -> None:
            await asyncio.sleep(1.0)
            envelope = {"__kind__": "raw", "value": "the first copy's result"}
            await app.store.record(thread_id, LedgerEntry(ledger_key=key, envelope=envelope))

        others.append(asyncio.create_task(finish()))
        return asked

    graph = agent([once])
    with_model(graph, model)
    _, state = await app.run(graph)
    await asyncio.gather(*others)
    assert ran == []
    assert results(state) == ["the first copy's result"]
