"""Workers that freeze, drain or are killed: the next attempt goes on elsewhere, and the lost one spoils nothing."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from tenxgraph_temporal import GraphClient, Settings
from tenxgraph_temporal.runtime.client import RunFailed

from ..support.app import App, eventually
from ..support.world import World
from .stop_graphs import HERE


def spec(*names: str) -> list[str]:
    return [f"{HERE}:{name}" for name in names]


async def entries(world: World, action: str) -> list[dict[str, Any]]:
    return [entry["body"] for entry in await world.log() if entry["action"] == action]


async def test_a_killed_worker_is_noticed_and_the_job_resumes(app: App, world: World) -> None:
    """Within heartbeats, not within tool_timeout; attempt 3 reads what attempt 1 reported."""
    thread_id = app.thread()
    async with app.process(*spec("stepping"), OUTSIDE_WORLD=world.address) as first:
        run = await app.start("stepping", thread_id, config={"tool_timeout": 300})
        await world.until("beaten", 1)
        await first.kill()
        killed = time.monotonic()
    async with app.process(*spec("stepping"), OUTSIDE_WORLD=world.address) as second:
        await world.until("steps", 2)
        assert time.monotonic() - killed < 15
        await world.until("beaten", 2)
        await second.kill()
    async with app.process(*spec("stepping"), OUTSIDE_WORLD=world.address):
        await run.result()
    seen = {body["attempt"]: body["left"] for body in await entries(world, "steps")}
    assert seen[1] == []
    assert seen[2] == ["chunk", 7]
    assert seen[3] == ["chunk", 7]  # attempt 2 reported nothing: what was left stands
    (record,) = await app.store.calls(thread_id)
    assert (record.status, record.attempt) == ("finished", 3)


@pytest.mark.parametrize(
    ("graph", "action"), [("working", "work"), ("sync_working", "sync_work"), ("node_working", "node_work")]
)
async def test_a_frozen_worker_that_wakes_up_spoils_nothing(app: App, world: World, graph: str, action: str) -> None:
    """A frozen worker's open polls may still be given an attempt or two, so the number of attempts is not fixed."""
    thread_id = app.thread()
    await world.hold(action)
    async with app.process(*spec(graph), OUTSIDE_WORLD=world.address) as zombie:
        run = await app.start(graph, thread_id)
        await world.until(action, 1)
        zombie.signal(signal.SIGSTOP)
        await world.release(action)  # the answer waits in the zombie's socket
        async with app.process(*spec(graph), OUTSIDE_WORLD=world.address) as second:
            await asyncio.wait_for(run.result(), 120)
            before = await app.head(thread_id)
            calls = await app.store.calls(thread_id)
            zombie.signal(signal.SIGCONT)
            await asyncio.sleep(3)
            after = await app.head(thread_id)
            assert (after.version, after.state_id) == (before.version, before.state_id)
            now = await app.store.calls(thread_id)
            assert [replace(c, replays=0) for c in now] == [replace(c, replays=0) for c in calls]
            assert await zombie.terminate() == 0, zombie.output
            assert await second.terminate() == 0, second.output
    state = await app.state(thread_id)
    assert state.execution_meta.status == "completed"
    (text,) = [m.text() for m in state.context if "worked in attempt" in m.text()]
    attempt = int(text.rpartition(" ")[2])
    assert attempt >= 2
    if calls:
        assert [(c.status, c.attempt) for c in calls] == [("finished", attempt)]
    assert 2 <= (await world.counts())[action] <= attempt


@pytest.mark.parametrize(
    ("graph", "action"), [("working", "work"), ("sync_working", "sync_work"), ("node_working", "node_work")]
)
async def test_sigterm_lets_a_step_finish(app: App, world: World, graph: str, action: str) -> None:
    thread_id = app.thread()
    await world.hold(action)
    async with app.process(*spec(graph), OUTSIDE_WORLD=world.address) as first:
        run = await app.start(graph, thread_id)
        await world.until(action, 1)
        first.signal(signal.SIGTERM)
        await first.until("draining")
        await asyncio.sleep(1)
        await world.release(action)
        assert await first.wait() == 0, first.output
    async with app.process(*spec(graph), OUTSIDE_WORLD=world.address):
        await run.result()
    assert (await world.counts())[action] == 1
    text = [m.text() for m in (await app.state(thread_id)).context if "worked" in m.text()]
    assert len(text) == 1 and text[0].endswith("worked in attempt 1")


@pytest.mark.parametrize(
    ("graph", "action"), [("working", "work"), ("sync_working", "sync_work"), ("node_working", "node_work")]
)
async def test_sigterm_cuts_what_does_not_finish(app: App, world: World, graph: str, action: str) -> None:
    """Made again elsewhere; recorded neither as a stop nor as a success."""
    thread_id = app.thread()
    await world.hold(action)
    short = {"TENXGRAPH_GRACEFUL_SHUTDOWN_TIMEOUT": "PT1S", "TENXGRAPH_CANCEL_GRACE": "PT1S"}
    async with app.process(*spec(graph), OUTSIDE_WORLD=world.address, **short) as first:
        run = await app.start(graph, thread_id)
        await world.until(action, 1)
        started = time.monotonic()
        assert await first.terminate() == 0, first.output
        assert time.monotonic() - started < 8
        assert await app.store.calls(thread_id) == []
        assert (await app.state(thread_id)).execution_meta.status == "running"
    await world.release(action)
    async with app.process(*spec(graph), OUTSIDE_WORLD=world.address):
        await asyncio.wait_for(run.result(), 40)
    assert (await world.counts())[action] == 2
    state = await app.state(thread_id)
    assert state.execution_meta.status == "completed"
    for record in await app.store.calls(thread_id):
        assert (record.status, record.attempt) == ("finished", 2)


async def test_sigterm_of_a_tool_that_gives_up_when_told_is_no_success(app: App, world: World) -> None:
    thread_id = app.thread()
    async with app.process(
        *spec("polling"), OUTSIDE_WORLD=world.address, TENXGRAPH_GRACEFUL_SHUTDOWN_TIMEOUT="1"
    ) as first:
        run = await app.start("polling", thread_id)
        await world.until("polls", 1)
        assert await first.terminate() == 0, first.output
        assert await app.store.calls(thread_id) == []
    async with app.process(*spec("polling"), OUTSIDE_WORLD=world.address):
        await asyncio.wait_for(run.result(), 40)
    assert [m.text() for m in (await app.state(thread_id)).context if m.role == "tool"] == ["finished"]


@pytest.mark.timeout(240)
async def test_steps_that_kill_their_workers_end_the_run(app: App, world: World) -> None:
    """Each on workers of its own: a step that shares a worker with one that kills it is lost with it."""

    async def supervise(name: str, queue: str) -> None:
        while True:
            env = {"OUTSIDE_WORLD": world.address, "TENXGRAPH_TASK_QUEUE": queue}
            async with app.process(*spec(name), **env) as worker:
                await worker.wait()

    async def poisoned(name: str, action: str, step: str, attempts: int = 5) -> None:
        thread_id, queue = app.thread(), f"{app.queue}-{name}"
        supervisor = asyncio.create_task(supervise(name, queue))
        try:
            run = await GraphClient(app.client, task_queue=queue).start(name, thread_id, "hi")
            with pytest.raises(RunFailed) as failure:
                await asyncio.wait_for(run.result(), 200)
            meta = (await app.state(thread_id)).execution_meta
            assert meta.status == "error"
        finally:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)
        assert (await world.counts())[action] == attempts
        assert step in str(failure.value), failure.value
        assert "lost its worker" in str(failure.value)
        assert step in meta.internal_data["error"]

    await asyncio.gather(
        poisoned("poisonous", "poison_tool", "tool:poison"),
        poisoned("poisonous_node", "poison_node", "node:poisonous_node"),
        # The local attempt, and those that Temporal counts.
        poisoned("poisonous_locally", "poison_locally", "tools:tools", 6),
    )


async def test_one_of_two_workers_is_killed_under_load(app: App, world: World) -> None:
    """One killed while five runs record their results: each call is recorded once."""
    thread_ids = [app.thread() for _ in range(5)]
    await world.hold("work")
    async with app.process(*spec("working"), OUTSIDE_WORLD=world.address) as first:
        runs = [await app.start("working", thread_id) for thread_id in thread_ids]
        await world.until("work", 5)
        async with app.process(*spec("working"), OUTSIDE_WORLD=world.address):
            await world.release("work")

            async def some_recorded() -> bool:
                return any([await app.store.calls(thread_id) for thread_id in thread_ids])

            await eventually(some_recorded)
            await first.kill()
            await asyncio.gather(*(run.result() for run in runs))
    for thread_id in thread_ids:
        (record,) = await app.store.calls(thread_id)
        assert record.status == "finished"


def test_durations_are_in_seconds_or_iso_8601() -> None:
    for text in ("1", "1.0", "PT1S"):
        settings = Settings.from_env({"TENXGRAPH_GRACEFUL_SHUTDOWN_TIMEOUT": text})
        assert settings.graceful_shutdown_timeout.total_seconds() == 1
