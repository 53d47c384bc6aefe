"""Memory that runs out: refused to a tool, or the kernel kills the worker for it."""

from __future__ import annotations

import asyncio

import pytest

from ..support.app import App, attempt_failures, eventually
from ..support.memory_limit import memory_limit
from ..support.world import World
from .memory_graphs import HERE, MIB


async def test_memory_that_is_refused_is_the_tools_error(app: App, world: World) -> None:
    """In a thread and in the loop: told to the model, made once; what runs beside it goes on, and the worker serves."""
    threads = [app.thread(), app.thread()]
    async with app.process(f"{HERE}:hoarding", OUTSIDE_WORLD=world.address) as worker:
        for thread_id in threads:
            await asyncio.wait_for((await app.start("hoarding", thread_id)).result(), 60)
            assert worker.running, worker.output
        assert await worker.terminate() == 0, worker.output
    for thread_id in threads:
        records = {record.tool: (record.status, record.attempt) for record in await app.store.calls(thread_id)}
        assert records == {"hoard": ("failed", 1), "async_hoard": ("failed", 1), "beside": ("finished", 1)}
        state = await app.state(thread_id)
        first, second, third = [message.text() for message in state.context if message.role == "tool"]
        assert first == "Tool 'hoard' failed: MemoryError"
        assert second == "Tool 'async_hoard' failed: MemoryError"
        assert third == "went on"
        assert state.execution_meta.status == "completed"
    assert dict(await world.counts()) == {"hoard": 2, "async_hoard": 2, "beside": 2}


@pytest.mark.parametrize("graph", ["crowded_tool", "crowded_node"])
async def test_a_worker_that_has_no_thread_left(app: App, world: World, graph: str) -> None:
    """What it could not begin has not failed, nor is it in doubt: it is run by the next worker that can."""
    thread_id = app.thread()

    async def refused() -> bool:
        return "WORKER_001" in await attempt_failures(run)

    async with app.process(f"{HERE}:{graph}", OUTSIDE_WORLD=world.address) as crowded:
        run = await app.start(graph, thread_id)
        await eventually(refused)
        await crowded.terminate()
    async with app.process(f"{HERE}:{graph}", OUTSIDE_WORLD=world.address):
        await asyncio.wait_for(run.result(), 60)
    state = await app.state(thread_id)
    assert state.execution_meta.status == "completed"
    assert state.context[-1].text() == "done"
    assert dict(await world.counts()) == {"crowd": 1, "pay": 1}


async def test_a_worker_that_the_kernel_kills_for_its_memory(app: App, world: World) -> None:
    """The next attempt goes on where there is more."""
    thread_id = app.thread()
    with memory_limit(400 * MIB) as limit:
        async with app.process(f"{HERE}:gulping", OUTSIDE_WORLD=world.address) as small:
            limit.hold(small.pid)
            run = await app.start("gulping", thread_id)
            assert await asyncio.wait_for(small.wait(), 60) == -9, small.output
            assert limit.kills == 1
            assert await app.store.calls(thread_id) == []
    async with app.process(f"{HERE}:gulping", OUTSIDE_WORLD=world.address):
        await asyncio.wait_for(run.result(), 60)
    (record,) = await app.store.calls(thread_id)
    assert (record.status, record.attempt) == ("finished", 2)
    state = await app.state(thread_id)
    assert [m.text() for m in state.context if m.role == "tool"] == ["took 600 MiB in attempt 2"]
    bodies = [entry["body"] for entry in await world.log()]
    assert [body["attempt"] for body in bodies] == [1, 2]
    assert len({body["key"] for body in bodies}) == 1
