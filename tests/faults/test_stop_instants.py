"""A stop at any instant, also while the first or the last step commits: finished or stopped, never in between."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from tenxgraph_temporal import END, CompiledGraph, StateGraph, ToolContext, ToolNode
from tenxgraph_temporal.runtime.state.blocks import ToolResultBlock

from ..support.app import App
from ..support.graphs import agent, asks, call
from ..support.stopping import ended, results, status_of
from ..support.world import World, do


def short_run(world: World) -> CompiledGraph:
    def one(name: str) -> Any:
        async def act(context: ToolContext) -> str:
            await asyncio.to_thread(do, world.address, "act", key=context.idempotency_key)
            return name

        act.__name__ = name
        return act

    turn = [call("first", "1"), call("second", "2")]
    return agent([one("first"), one("second")], turn, turn, name="short")


def hold_up(world: World) -> Any:
    async def hold_up() -> str:
        await asyncio.to_thread(do, world.address, "act")
        return "done"

    return hold_up


# The SDK warns of a local activity that ended just before its cancel; as an error it would end the worker.
@pytest.mark.filterwarnings("default:Cannot find activity to cancel")
async def test_stopped_at_a_hundred_instants(app: App, world: World) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    graph = short_run(world)
    ends: Counter[str] = Counter()
    problems: list[str] = []

    async def whole() -> float:
        started = time.monotonic()
        await (await app.start("short", app.thread())).result()
        return time.monotonic() - started

    async def one(delay: float) -> None:
        thread_id = app.thread()
        run = await app.start("short", thread_id)
        await asyncio.sleep(delay)
        await run.stop()
        try:
            end = await ended(run, within=40)
        except Exception as exc:
            problems.append(f"{thread_id} after {delay:.3f}: {exc!r}")
            return
        expected = {
            "completed": WorkflowExecutionStatus.COMPLETED,
            "interrupted_after": WorkflowExecutionStatus.CANCELED,
        }
        if await status_of(run) != expected[end]:
            problems.append(f"{thread_id}: {end}, but {await status_of(run)}")
        await asyncio.sleep(0.3)  # whatever is still under way may still commit
        head = await app.store.load_head(thread_id, None)
        saved = "untouched"
        if head is not None:
            meta = (await app.state(thread_id)).execution_meta
            saved = str(meta.status.value)
        fits = {"completed": {"completed"}, "interrupted_after": {"interrupted_after", "untouched"}}
        if saved not in fits[end]:
            problems.append(f"{thread_id} after {delay:.3f}: the run is {end}, its thread {saved}")
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
        usual = statistics.median(await asyncio.gather(*(whole() for _ in range(10))))
        for _ in range(10):
            await asyncio.gather(*(one(rng.uniform(0, 1.3 * usual)) for _ in range(10)))
    print(usual, ends)
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
        end = await ended(run)
        await asyncio.sleep(0.5)
        state = await app.state(thread_id)
        assert state.execution_meta.status == end
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
        end = await ended(run)
        await asyncio.sleep(0.5)
        state = await app.state(thread_id)
        if [m.text() for m in state.context] == ["hi", "done"]:
            end = "completed"  # nothing of the second run is there
        assert state.execution_meta.status == end
        await asyncio.wait_for((await app.start("agent", thread_id, "third")).result(), 30)
    assert (await app.state(thread_id)).execution_meta.status == "completed"
