"""Stopping a run: how soon it reaches each kind of code, and what is left of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from tenxgraph_temporal import END, AgentState, StateGraph, ToolContext, ToolNode, tool
from tenxgraph_temporal.runtime.client import RunStopped
from tenxgraph_temporal.runtime.errors import StoreUnavailable
from tenxgraph_temporal.runtime.thread_call import ThreadInterrupted

from ..support.app import App, activities, attempt_failures, eventually
from ..support.graphs import agent, asks, call
from ..support.stopping import assert_saved_as_stopped, results, status_of, stopped


@dataclass
class Away:
    """A store that cannot be reached by who was waiting for it when it is told to go on."""

    store: Any
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def load_call(self, *arguments: Any) -> Any:
        if not self.goes_on.is_set():
            self.asked.set()
            await self.goes_on.wait()
            raise StoreUnavailable("away")
        return await self.store.load_call(*arguments)


def only_once(old: str, new: str) -> str:
    """A reducer that can't join two decisions."""
    raise LookupError(f"{new!r} after {old!r}")


class Decided(AgentState):
    decision: str = ""
    decided_by: Annotated[str, only_once] = ""


async def test_stop_reaches_every_kind_of_code(app: App) -> None:
    """Async code as CancelledError, polling code through its context, opted-in code by an exception."""
    running, seen = set[str](), dict[str, float]()

    async def async_tool() -> str:
        running.add("async")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen["async"] = time.monotonic()
            raise
        return "late"

    def polling(context: ToolContext) -> str:
        running.add("polling")
        while not context.cancelled:
            time.sleep(0.01)
        seen["polling"] = time.monotonic()
        raise RuntimeError("told to stop")

    @tool(interruptible=True)
    def interrupted() -> str:
        running.add("interrupted")
        try:
            while True:
                time.sleep(0.01)
        except ThreadInterrupted:
            seen["interrupted"] = time.monotonic()
            raise

    def quick() -> str:
        return "quick result"

    calls = [call("async_tool", "a"), call("polling", "p"), call("interrupted", "i"), call("quick", "q")]
    graph = agent([async_tool, polling, interrupted, quick], calls)
    thread_id = app.thread()
    async with app.worker(graph):
        run = await app.start("agent", thread_id)

        async def under_way() -> bool:
            return len(running) == 3 and any(c.status == "finished" for c in await app.store.calls(thread_id))

        await eventually(under_way)
        asked = time.monotonic()
        await stopped(run, within=4)
        assert {kind: round(at - asked, 1) for kind, at in seen.items() if at - asked > 2} == {}
        assert set(seen) == {"async", "polling", "interrupted"}
        state = await app.state(thread_id)
        assert_saved_as_stopped(state)
        told = results(state)
        assert told["q"] == "quick result"
        statuses = {c.ledger_key.rpartition(":")[2]: c.status for c in await app.store.calls(thread_id)}
        assert statuses["q"] == "finished"
        assert "finished" not in {statuses["a"], statuses["p"], statuses["i"]}, statuses
        assert statuses["a"] == statuses["i"] == "cancelled"
        assert "cancelled" in told["a"] and "cancelled" in told["i"]

        await (await app.start("agent", thread_id, None)).result()
    state = await app.state(thread_id)
    assert state.execution_meta.status == "completed"


async def test_a_polling_tool_that_gives_up_is_no_success(app: App) -> None:
    running = threading.Event()

    def polling(context: ToolContext) -> str:
        running.set()
        while not context.cancelled:
            time.sleep(0.01)
        return "only half of it"

    thread_id = app.thread()
    async with app.worker(agent([polling], [call("polling", "p")])):
        run = await app.start("agent", thread_id)
        await asyncio.to_thread(running.wait, 20)
        await stopped(run, within=4)
    (record,) = await app.store.calls(thread_id)
    assert record.status == "cancelled"


async def test_a_tool_that_ignores_the_stop_does_not_hold_the_run(app: App) -> None:
    running, release, ended = threading.Event(), threading.Event(), threading.Event()

    def deaf() -> str:
        running.set()
        while not release.is_set():
            time.sleep(0.01)
        ended.set()
        return "late"

    thread_id = app.thread()
    async with app.worker(agent([deaf], [call("deaf", "d")]), cancel_grace=timedelta(seconds=1)):
        run = await app.start("agent", thread_id)
        await asyncio.to_thread(running.wait, 20)
        await stopped(run, within=4)
        release.set()
        await asyncio.to_thread(ended.wait, 20)
        await asyncio.sleep(0.3)
        (record,) = await app.store.calls(thread_id)
        assert record.status == "cancelled"
        state = await app.state(thread_id)
        assert_saved_as_stopped(state)
        assert "cancelled" in results(state)["d"]
        await (await app.start("agent", thread_id, "next")).result()
    assert (await app.state(thread_id)).execution_meta.status == "completed"


async def test_a_node_is_stopped_and_its_result_refused(app: App) -> None:
    running, visits = asyncio.Event(), []

    async def slow(state: AgentState) -> str:
        visits.append(1)
        running.set()
        if len(visits) == 1:
            await asyncio.sleep(60)
        return "said"

    builder = StateGraph(name="g")
    builder.add_node("slow", slow).set_entry_point("slow").add_edge("slow", END)
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        run = await app.start("g", thread_id)
        await running.wait()
        await stopped(run, within=4)
        state = await app.state(thread_id)
        assert_saved_as_stopped(state)
        assert state.execution_meta.current_node == "slow"
        await (await app.start("g", thread_id, None)).result()
    assert [m.text() for m in (await app.state(thread_id)).context] == ["hi", "said"]


async def test_stopped_before_anything_ran(app: App) -> None:
    """No worker is up when the run is started and stopped."""
    thread_id = app.thread()
    run = await app.start("agent", thread_id)
    await run.stop()
    await run.stop()
    async with app.worker(agent([], answer="hello")):
        with pytest.raises(RunStopped):
            await run.result()
        assert await status_of(run) == WorkflowExecutionStatus.CANCELED
        head = await app.store.load_head(thread_id, None)
        if head is not None:
            assert_saved_as_stopped(await app.state(thread_id))
        await (await app.start("agent", thread_id, "again")).result()
    assert (await app.state(thread_id)).execution_meta.status == "completed"


async def test_a_second_stop_changes_nothing(app: App) -> None:
    running = asyncio.Event()

    async def cleans_up() -> str:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1.5)
        return "late"

    thread_id = app.thread()
    async with app.worker(agent([cleans_up], [call("cleans_up", "c")])):
        run = await app.start("agent", thread_id)
        await running.wait()
        await run.stop()
        await asyncio.sleep(0.5)
        await stopped(run, within=6)
        assert_saved_as_stopped(await app.state(thread_id))
        await (await app.start("agent", thread_id, None)).result()
    assert (await app.state(thread_id)).execution_meta.status == "completed"


async def test_terminate_and_a_new_run(app: App) -> None:
    running = asyncio.Event()
    attempts: list[str] = []

    async def slow() -> str:
        attempts.append("slow")
        running.set()
        if attempts.count("slow") == 1:
            await asyncio.sleep(60)
        return "worked"

    def quick() -> str:
        attempts.append("quick")
        return "quick"

    thread_id = app.thread()
    async with app.worker(agent([slow, quick], [call("slow", "s"), call("quick", "q")])):
        run = await app.start("agent", thread_id)
        await running.wait()

        async def recorded() -> bool:
            return bool(await app.store.calls(thread_id))

        await eventually(recorded)
        await run.workflow.terminate("by the test")
        assert await status_of(run) == WorkflowExecutionStatus.TERMINATED
        await (await app.start("agent", thread_id, None)).result()
    state = await app.state(thread_id)
    assert state.execution_meta.status == "completed"
    assert results(state) == {"s": "worked", "q": "quick"}
    assert Counter(attempts) == {"slow": 2, "quick": 1}


async def test_stopped_where_the_way_on_needs_what_did_not_happen(app: App) -> None:
    """Neither the router nor the reducer expects calls that were cancelled: the stop is a stop all the same."""
    running = asyncio.Event()

    async def decides(state: Decided) -> str:
        running.set()
        await asyncio.sleep(3600)
        return "never"

    def record(state: Decided) -> str:
        state.decision = "no"
        state.decided_by = "record"
        return "recorded"

    def doubt(state: Decided) -> str:
        state.decided_by = "doubt"
        return "doubted"

    def route(state: Decided) -> str:
        return {"yes": "last"}[state.decision]

    builder = StateGraph(Decided, name="g")
    builder.add_node("model", lambda state: asks(call("record", "1"), call("decides", "2"), call("doubt", "3")))
    builder.add_node("tools", ToolNode([decides, record, doubt])).add_node("last", lambda state: "done")
    builder.set_entry_point("model").add_edge("model", "tools").add_edge("last", END)
    builder.add_conditional_edges("tools", route)
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        run = await app.start("g", thread_id)
        await running.wait()

        async def has_recorded() -> bool:
            finished = {one.tool for one in await app.store.calls(thread_id) if one.status == "finished"}
            return finished == {"record", "doubt"}

        await eventually(has_recorded)
        await stopped(run, within=6)
        state = await app.state(thread_id, Decided)
        assert_saved_as_stopped(state)
        assert (results(state)["1"], results(state)["3"]) == ("recorded", "doubted")
        assert state.decided_by == ""
        assert "cancelled" in results(state)["2"]
        nxt = await app.start("g", thread_id, "go on", state={"decision": "yes"})
        await nxt.result()
    assert (await app.state(thread_id, Decided)).context[-1].text() == "done"


@pytest.mark.parametrize("execution", ["batch", "local"], indirect=True)
async def test_a_batch_that_a_shutdown_cuts_short_counts_as_nothing(app: App, execution: str) -> None:
    running = asyncio.Event()
    attempts: list[int] = []

    async def waits(context: ToolContext) -> str:
        attempts.append(context.attempt)
        running.set()
        if len(attempts) == 1:
            await asyncio.sleep(3600)
        return "done"

    graph = agent([waits], [call("waits", "1")])
    thread_id = app.thread()

    async with app.worker(graph, cancel_grace=timedelta(seconds=1)):
        run = await app.start("agent", thread_id)
        await running.wait()
        asked = time.monotonic()
    assert time.monotonic() - asked < 40
    if execution == "batch":
        assert await eventually(lambda: attempt_failures(run)) == ["WorkerShutdown"]
    async with app.worker(graph):
        await run.result()
    assert len(attempts) == 2
    assert [record.status for record in await app.store.calls(thread_id)] == ["finished"]


async def test_stopped_during_a_local_attempt(app: App) -> None:
    """A worker hears of it when it next reports on the workflow task, within four fifths of that task's timeout."""
    running = asyncio.Event()
    told: list[str] = []

    async def hang(context: ToolContext) -> str:
        context.heartbeat("where it stands")  # goes nowhere, and does no harm
        running.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise
        return "late"

    def quick() -> str:
        return "quick"

    thread_id = app.thread()
    async with app.worker(agent([hang, quick], [call("hang", "h"), call("quick", "q")], execution="local")):
        run = await app.start("agent", thread_id)
        await running.wait()
        await stopped(run, within=13)
    state = await app.state(thread_id)
    assert_saved_as_stopped(state)
    assert told == ["cancelled"]
    assert results(state)["q"] == "quick"
    assert "cancelled" in results(state)["h"]
    assert {c.tool: c.status for c in await app.store.calls(thread_id)} == {"hang": "cancelled", "quick": "finished"}
    assert activities(await run.workflow.fetch_history()) == ["node:model"]


async def test_stopped_while_the_database_goes_away(app: App) -> None:
    """The attempt fails before it hears of the stop: it is not made again."""
    done: list[str] = []

    def act() -> str:
        done.append("act")
        return "acted"

    thread_id, store = app.thread(), Away(app.store)
    async with app.worker(agent([act], [call("act", "1")]), store=store):
        run = await app.start("agent", thread_id)
        await store.asked.wait()
        await run.stop()
        store.goes_on.set()
        with pytest.raises(RunStopped):
            await asyncio.wait_for(run.result(), 10)
    assert_saved_as_stopped(await app.state(thread_id))
    assert done == []
