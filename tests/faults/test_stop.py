"""Stopping a run, at any instant: it ends stopped or finished, never in between, and the thread goes on."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from tenxgraph_temporal import END, AgentState, CompiledGraph, RunHandle, StateGraph, ToolContext, ToolNode, tool
from tenxgraph_temporal.runtime.client import RunStopped
from tenxgraph_temporal.runtime.state.blocks import ToolResultBlock
from tenxgraph_temporal.runtime.thread_call import ThreadInterrupted

from ..support.app import App, eventually
from ..support.graphs import agent, asks, call
from ..support.world import World, do


async def status_of(run: RunHandle) -> WorkflowExecutionStatus | None:
    return (await run.workflow.describe()).status


async def stopped(run: RunHandle, *, within: float) -> None:
    """Stop it and wait for its end."""
    await run.stop()
    started = time.monotonic()
    with pytest.raises(RunStopped):
        await run.result()
    assert time.monotonic() - started < within, time.monotonic() - started
    assert await status_of(run) == WorkflowExecutionStatus.CANCELED


def results(state: AgentState) -> dict[str, str]:
    """What the model was told, by call."""
    return {
        block.call_id: message.text()
        for message in state.context
        if message.role == "tool"
        for block in message.content
        if isinstance(block, ToolResultBlock)
    }


def assert_saved_as_stopped(state: AgentState) -> None:
    meta = state.execution_meta
    assert meta.status == "interrupted_after", meta
    assert "stop_requested" in str(meta), meta


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
    running, attempts = asyncio.Event(), []

    async def slow() -> str:
        attempts.append(1)
        running.set()
        if len(attempts) == 1:
            await asyncio.sleep(60)
        return "worked"

    def quick() -> str:
        attempts.append(0)
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
    assert Counter(attempts) == {1: 2, 0: 1}


def short_run(world: World) -> CompiledGraph:
    def one(name: str) -> Any:
        async def act(context: ToolContext) -> str:
            await asyncio.to_thread(do, world.address, "act", key=context.idempotency_key)
            return name

        act.__name__ = name
        return act

    turn = [call("first", "1"), call("second", "2")]
    return agent([one("first"), one("second")], turn, turn, name="short")


# The SDK warns of a local activity that ended just before its cancel; as an error it would end the worker.
@pytest.mark.filterwarnings("default:Cannot find activity to cancel")
async def test_stopped_at_a_hundred_instants(app: App, world: World) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    graph = short_run(world)
    ends: Counter[str] = Counter()
    problems: list[str] = []

    async def one(delay: float) -> None:
        thread_id = app.thread()
        run = await app.start("short", thread_id)
        await asyncio.sleep(delay)
        await run.stop()
        try:
            await asyncio.wait_for(run.result(), 40)
            ended = "completed"
        except RunStopped:
            ended = "stopped"
        except Exception as exc:
            problems.append(f"{thread_id} after {delay:.3f}: {exc!r}")
            return
        expected = {"completed": WorkflowExecutionStatus.COMPLETED, "stopped": WorkflowExecutionStatus.CANCELED}
        if await status_of(run) != expected[ended]:
            problems.append(f"{thread_id}: {ended}, but {await status_of(run)}")
        await asyncio.sleep(0.3)  # whatever is still under way may still commit
        head = await app.store.load_head(thread_id, None)
        saved = "untouched"
        if head is not None:
            meta = (await app.state(thread_id)).execution_meta
            saved = str(meta.status.value)
        fits = {"completed": {"completed"}, "stopped": {"interrupted_after", "untouched"}}
        if saved not in fits[ended]:
            problems.append(f"{thread_id} after {delay:.3f}: the run is {ended}, its thread {saved}")
        ends[saved] += 1
        try:
            await asyncio.wait_for((await app.start("short", thread_id, "next")).result(), 40)
        except Exception as exc:
            problems.append(f"{thread_id} after {delay:.3f}: the next run: {exc!r}")
            return
        state = await app.state(thread_id)
        if state.execution_meta.status != "completed":
            problems.append(f"{thread_id}: {state.execution_meta.status} after its next run")
        asked = [c["id"] for m in state.context for c in m.tools_calls or ()]
        answered = [
            block.call_id
            for message in state.context
            for block in message.content
            if message.role == "tool" and isinstance(block, ToolResultBlock)
        ]
        if Counter(asked) != Counter(answered):
            problems.append(f"{thread_id}: asked {asked}, answered {answered}")
        versions = [v.version for v in await app.store.list_versions(thread_id, None)]
        if versions != list(range(versions[0], versions[0] - len(versions), -1)):
            problems.append(f"{thread_id}: versions {versions}")

    async with app.worker(graph, max_cached_workflows=1000):
        for _ in range(10):
            await asyncio.gather(*(one(rng.uniform(0, 0.9)) for _ in range(10)))
    print(ends)
    assert not problems, "\n".join(problems)
    assert ends["completed"] >= 1 and ends["interrupted_after"] > 30, ends
    done = Counter(entry["body"]["key"] for entry in await world.log())
    assert max(done.values()) == 1, done.most_common(3)


@pytest.mark.filterwarnings("default:Cannot find activity to cancel")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("held", [1, 12])  # with the latter the workflow hears of the cancel during the commit
async def test_stopped_while_a_commit_is_under_way(app: App, world: World, last: bool, held: int) -> None:
    """The commit waits in Postgres for the thread's lock when the cancel arrives."""
    graph = agent([hold_up(world)], [call("hold_up", "1")], name="g")
    if last:  # the commit of the tools is the run's last
        builder = StateGraph(name="g")
        builder.add_node("model", lambda state: asks(call("hold_up", "1")))
        builder.add_node("tools", ToolNode([hold_up(world)]))
        graph = builder.set_entry_point("model").add_edge("model", "tools").add_edge("tools", END).compile()
    thread_id = app.thread()
    await world.hold("act")
    async with app.worker(graph, max_cached_workflows=100):
        run = await app.start("g", thread_id)
        await world.until("act")
        async with app.commits_held(thread_id) as commit_waits:
            await world.release("act")
            await commit_waits()
            await run.stop()
            await asyncio.sleep(held)
        try:
            await asyncio.wait_for(run.result(), 30)
            ended = "completed"
        except RunStopped:
            ended = "interrupted_after"
        await asyncio.sleep(0.5)
        state = await app.state(thread_id)
        assert state.execution_meta.status == ended
        assert results(state) == {"1": "done"}  # recorded before the stop
        await asyncio.wait_for((await app.start("g", thread_id, None if not last else "more")).result(), 30)
    assert (await app.state(thread_id)).execution_meta.status == "completed"


@pytest.mark.filterwarnings("default:Cannot find activity to cancel")
@pytest.mark.parametrize("held", [1, 12])
async def test_stopped_while_the_run_begins(app: App, held: int) -> None:
    """A second run on the thread: its first commit waits in Postgres when the cancel arrives."""
    thread_id = app.thread()
    async with app.worker(agent([]), max_cached_workflows=100):
        await (await app.start("agent", thread_id)).result()
        async with app.store.pool.acquire() as blocker, blocker.transaction():
            query = f'SELECT 1 FROM "{app.store.schema}".threads WHERE thread_id = $1 FOR NO KEY UPDATE'
            await blocker.execute(query, thread_id)
            run = await app.start("agent", thread_id, "second")
            await asyncio.sleep(1)
            await run.stop()
            await asyncio.sleep(held)
        try:
            await asyncio.wait_for(run.result(), 30)
            ended = "completed"
        except RunStopped:
            ended = "interrupted_after"
        await asyncio.sleep(0.5)
        state = await app.state(thread_id)
        if [m.text() for m in state.context] == ["hi", "done"]:
            ended = "completed"  # nothing of the second run is there
        assert state.execution_meta.status == ended
        await asyncio.wait_for((await app.start("agent", thread_id, "third")).result(), 30)
    assert (await app.state(thread_id)).execution_meta.status == "completed"


def hold_up(world: World) -> Any:
    async def hold_up() -> str:
        await asyncio.to_thread(do, world.address, "act")
        return "done"

    return hold_up
