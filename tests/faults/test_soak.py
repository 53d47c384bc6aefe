"""Hundreds of timed-out and cancelled tools on one worker; afterwards it serves as on its first day."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tenxgraph_temporal import RunHandle, ToolContext, tool
from tenxgraph_temporal.runtime.client import RunStopped
from tenxgraph_temporal.runtime.progress import pending_steps
from tenxgraph_temporal.runtime.thread_call import ThreadInterrupted

from ..support.app import App, eventually
from ..support.graphs import agent, call

SLOTS = 60
"""The worker's activity slots: it is full if one is lost."""


async def hangs() -> str:
    await asyncio.sleep(3600)
    return "late"


def polls(context: ToolContext) -> str:
    while not context.cancelled:
        time.sleep(0.01)
    return "late"


@tool(interruptible=True)
def spins() -> str:
    while True:
        time.sleep(0.01)


@tool(interruptible=True)
def swallows() -> str:
    """Delays its interruption."""
    try:
        while True:
            time.sleep(0.01)
    except ThreadInterrupted:
        time.sleep(0.1)
        raise


def deaf() -> str:
    time.sleep(1.5)
    return "late"


KINDS: list[Any] = [hangs, polls, spins, swallows, deaf]
NAMES = ["hangs", "polls", "spins", "swallows", "deaf"]


async def calls_under_way(app: App, run: RunHandle) -> bool:
    steps = await pending_steps(app.client, run.workflow.id)
    return any(step.activity.startswith("tool:") for step in steps)


@pytest.mark.timeout(300)
async def test_the_worker_keeps_its_capacity(app: App) -> None:
    barrier = threading.Barrier(SLOTS // 2)
    meeting = asyncio.Event()
    met: list[int] = []

    def sync_meet() -> str:
        barrier.wait(60)
        return "met"

    async def async_meet() -> str:
        met.append(1)
        if len(met) == SLOTS // 2:
            meeting.set()
        await asyncio.wait_for(meeting.wait(), 60)
        return "met"

    many = [call(NAMES[i % len(NAMES)], str(i)) for i in range(30)]
    crowd = [call(("sync_meet", "async_meet")[i % 2], str(i)) for i in range(SLOTS)]
    hosted = [agent(KINDS, many, name="lost"), agent([sync_meet, async_meet], crowd, name="crowd")]
    async with app.worker(
        *hosted,
        max_cached_workflows=100,
        max_concurrent_activities=SLOTS,
        cancel_grace=timedelta(seconds=0.5),
    ):
        await (await app.start("crowd", app.thread())).result()
        threads_before = threading.active_count()
        tasks_before = len(asyncio.all_tasks())
        timed_out = [await app.start("lost", app.thread(), config={"tool_timeout": 0.2}) for _ in range(6)]
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in timed_out)), 120)
        cancelled = [await app.start("lost", app.thread()) for _ in range(6)]
        for run in cancelled:
            await eventually(partial(calls_under_way, app, run))
            await run.stop()
        ends = await asyncio.wait_for(asyncio.gather(*(r.result() for r in cancelled), return_exceptions=True), 120)
        assert all(isinstance(end, RunStopped) for end in ends), ends

        statuses = []
        for run in timed_out:
            calls = await app.store.calls(run.thread_id)
            statuses += [record.status for record in calls]
        assert statuses == ["timeout"] * 180, statuses
        for run in cancelled:
            calls = await app.store.calls(run.thread_id)
            assert len(calls) == 30
            assert {record.status for record in calls} <= {"cancelled", "finished"}

        crowd_thread = app.thread()
        run = await app.start("crowd", crowd_thread)
        await asyncio.wait_for(run.result(), 60)
        texts = [m.text() for m in (await app.state(crowd_thread)).context if m.role == "tool"]
        assert texts == ["met"] * SLOTS

        async def threads_ended() -> bool:
            return threading.active_count() <= threads_before + 10  # the SDK's and asyncio's own pools grow once

        await eventually(threads_ended)
        assert not [t for t in threading.enumerate() if t.name.startswith("tool ")]

        async def connections_back() -> Any:
            pool = app.store.pool
            return pool.get_size() <= 10 and pool.get_idle_size() == pool.get_size()

        await eventually(connections_back)
        assert len(asyncio.all_tasks()) <= tasks_before + 8, asyncio.all_tasks()
