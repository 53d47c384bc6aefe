"""Hours and days that a run waits, in moments: Temporal skips the time in which nothing but a timer is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import accumulate, islice, takewhile
from typing import Any
from urllib.parse import urlsplit

import pytest
from temporalio.api.enums.v1 import EventType

from tenxgraph_temporal import END, AgentState, Retry, RunHandle, StateGraph, ToolNode, interrupt, tool
from tenxgraph_temporal.runtime.client import RunStopped
from tenxgraph_temporal.runtime.devstack import skip_time
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore
from tenxgraph_temporal.workflows.dispatch import pauses

from ..support.app import App, eventually
from ..support.graphs import asks, call, results
from ..support.proxy import Door, door_to

HOUR = 3600.0
DAY = 24 * HOUR


class Busy(ConnectionError):
    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


async def elapsed(run: RunHandle) -> timedelta:
    """How long the run took by the workflow's clock."""
    events = (await run.workflow.fetch_history()).events
    took: timedelta = events[-1].event_time.ToDatetime() - events[0].event_time.ToDatetime()
    return took


PATIENT = Retry(max_attempts=6, on=(ConnectionError,), interval=HOUR, max_interval=4 * HOUR)


async def test_a_node_backs_off_for_hours(app: App) -> None:
    """1, 2, 4, 4 hours, and the half hour that one error asks for; each attempt has its whole deadline."""
    ran: list[int] = []
    release = asyncio.Event()

    async def flaky(state: AgentState) -> str:
        ran.append(len(ran) + 1)
        if len(ran) == 1:
            await release.wait()
        if len(ran) < 6:
            raise Busy(HOUR / 2 if len(ran) == 3 else None)
        await asyncio.sleep(0.5)
        return "at last"

    builder = StateGraph(name="patient")
    builder.add_node("flaky", flaky, retry=PATIENT, timeout=20).set_entry_point("flaky").add_edge("flaky", END)
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        run = await app.start("patient", thread_id)
        await eventually(lambda: asyncio.sleep(0, ran))
        await skip_time(app.client, run.workflow)
        release.set()
        await asyncio.wait_for(run.result(), 60)
    assert ran == [1, 2, 3, 4, 5, 6]
    assert (await app.state(thread_id)).context[-1].text() == "at last"
    took = await elapsed(run)
    assert timedelta(hours=11.5) <= took < timedelta(hours=11.5, minutes=5), took


@pytest.mark.parametrize("execution", ["activity", "batch"])
async def test_a_tool_waits_as_long_as_its_error_asks(app: App, execution: Any) -> None:
    """A sibling that is done is not made again."""
    ran: list[str] = []
    release = asyncio.Event()

    @tool(retry=Retry(on=(ConnectionError,)))
    async def limited() -> str:
        ran.append("limited")
        if len(ran) == 2:
            await release.wait()
            raise Busy(HOUR)
        return "served"

    def quick() -> str:
        ran.append("quick")
        return "quick"

    builder = StateGraph(name="g")
    builder.add_node("model", lambda state: asks(call("quick", "1"), call("limited", "2")))
    builder.add_node("tools", ToolNode([limited, quick], execution=execution))
    builder.set_entry_point("model").add_edge("model", "tools").add_edge("tools", END)
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        run = await app.start("g", thread_id)

        async def quick_recorded() -> bool:
            return len(ran) == 2 and len(await app.store.calls(thread_id)) == 1

        await eventually(quick_recorded)
        await skip_time(app.client, run.workflow)
        release.set()
        await asyncio.wait_for(run.result(), 60)
    assert sorted(ran) == ["limited", "limited", "quick"]
    assert results(await app.state(thread_id)) == ["quick", "served"]
    took = await elapsed(run)
    assert timedelta(hours=1) <= took < timedelta(hours=1, minutes=5), took


async def test_a_stop_does_not_wait_for_the_next_attempt(app: App) -> None:
    ran: list[int] = []

    def limited(state: AgentState) -> str:
        ran.append(1)
        raise Busy(30 * DAY)

    builder = StateGraph(name="g")
    builder.add_node("limited", limited, retry=Retry()).set_entry_point("limited").add_edge("limited", END)
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        run = await app.start("g", thread_id)

        async def backs_off() -> bool:
            pending = (await run.workflow.describe()).raw_description.pending_activities
            return bool(pending) and pending[0].attempt == 2

        await eventually(backs_off)
        await run.stop()
        with pytest.raises(RunStopped):
            await asyncio.wait_for(run.result(), 10)
    assert ran == [1]
    assert (await app.state(thread_id)).execution_meta.status == "interrupted_after"


async def test_waiting_for_a_person_is_not_counted_against_deadlines(app: App) -> None:
    """Three days between question and answer, in a node and in a tool that have seconds; then their time is theirs."""
    cancelled: list[str] = []

    async def model(state: AgentState) -> Any:
        interrupt("in the node?", timeout=3 * DAY, on_timeout="yes")
        await asyncio.sleep(0.5)
        return asks(call("asks_first", "1"), call("hangs_then", "2"))

    async def asks_first() -> str:
        answer = interrupt("in the tool?", timeout=3 * DAY, on_timeout="yes")
        await asyncio.sleep(0.5)
        return f"{answer}, in time"

    async def hangs_then() -> str:
        interrupt("and here?", timeout=3 * DAY, on_timeout="yes")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("hangs_then")
            raise
        return "late"

    builder = StateGraph(name="g")
    builder.add_node("model", model, timeout=5)
    builder.add_node("tools", ToolNode([asks_first, hangs_then]), timeout=10)
    builder.set_entry_point("model").add_edge("model", "tools").add_edge("tools", END)
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        run = await app.start("g", thread_id, config={"tool_timeout": 3})

        async def asked() -> bool:
            head = await app.store.load_head(thread_id, None)
            return head is not None and (await app.state(thread_id)).execution_meta.is_interrupted

        await eventually(asked)
        await skip_time(app.client, run.workflow)
        await asyncio.wait_for(run.result(), 60)
    answered, out_of_time = results(await app.state(thread_id))
    assert answered == "yes, in time"
    assert "NODE_TIMEOUT_002" in out_of_time and "tool_timeout of 3 s" in out_of_time
    assert cancelled == ["hangs_then"]
    took = await elapsed(run)
    assert timedelta(days=6) <= took < timedelta(days=6, minutes=5), took


async def test_what_temporal_is_told_of_deadlines(app: App) -> None:
    """900 s for a node and 300 s for a tool, and 15 s in which the attempt ends by itself; a heartbeat within 10 s."""

    def by_default() -> str:
        return "x"

    @tool(timeout=None)
    def by_itself() -> str:
        return "x"

    def graph(execution: Any) -> Any:
        builder = StateGraph(name=execution)
        builder.add_node("model", lambda state: asks(call("by_default", "1"), call("by_itself", "2")))
        builder.add_node("tools", ToolNode([by_default, by_itself], execution=execution))
        builder.add_node("last", lambda state: "done", timeout=7)
        builder.set_entry_point("model").add_edge("model", "tools").add_edge("tools", "last").add_edge("last", END)
        return builder.compile()

    async def told(execution: str, **config: Any) -> dict[str, float]:
        async with app.worker(graph(execution)):
            run = await app.start(execution, app.thread(), config=config)
            await asyncio.wait_for(run.result(), 30)
        scheduled = [
            event.activity_task_scheduled_event_attributes
            for event in (await run.workflow.fetch_history()).events
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        ]
        assert {one.heartbeat_timeout.ToSeconds() for one in scheduled} == {10}
        return {one.activity_type.name: one.start_to_close_timeout.ToTimedelta().total_seconds() for one in scheduled}

    ten_years = timedelta(days=3650).total_seconds()
    assert await told("activity") == {
        "node:model": 915,
        "tool:by_default": 315,
        "tool:by_itself": 915,  # the step's
        "node:last": 22,
    }
    assert await told("batch") == {"node:model": 915, "tools:tools": 915, "node:last": 22}
    assert await told("activity", node_timeout=None, tool_timeout=60) == {
        "node:model": ten_years,
        "tool:by_default": 75,
        "tool:by_itself": 75,
        "node:last": ten_years,
    }
    unbounded = await told("activity", node_timeout=0, tool_timeout=-1)
    assert set(unbounded.values()) == {ten_years}


@pytest.fixture
async def behind_a_door(app: App) -> AsyncIterator[tuple[PostgresStore, Door]]:
    """A store that gives up at once, and what can cut it off."""
    postgres = urlsplit(app.stack.postgres_dsn)
    assert postgres.port is not None
    async with door_to(postgres.port) as door:
        dsn = f"postgresql://{postgres.username}@{door.address}{postgres.path}"
        store = await PostgresStore.open(dsn, schema=app.store.schema, pool_size=5, retry_timeout=0.05)
        yield store, door
        door.open()
        await store.close()


async def test_the_database_is_away_and_the_pauses_grow(app: App, behind_a_door: tuple[PostgresStore, Door]) -> None:
    """Nothing fails for it, the history stays small, and the run goes on soon after the database is back."""
    store, door = behind_a_door
    held, release = asyncio.Event(), asyncio.Event()

    async def node(state: AgentState) -> str:
        held.set()
        await release.wait()
        return "worked"

    builder = StateGraph(name="g")
    builder.add_node("node", node).set_entry_point("node").add_edge("node", END)
    thread_id = app.thread()
    async with app.worker(builder.compile(), store=store, max_cached_workflows=100):
        run = await app.start("g", thread_id)
        await held.wait()
        door.shut()
        await skip_time(app.client, run.workflow)
        release.set()

        async def minutes_later() -> bool:
            return await elapsed(run) > timedelta(minutes=1)

        await eventually(minutes_later, timeout=80)
        door.open()
        await asyncio.wait_for(run.result(), 60)
    assert (await app.state(thread_id)).context[-1].text() == "worked"
    timers = [
        event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
        for event in (await run.workflow.fetch_history()).events
        if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED
    ]
    expected = [pause.total_seconds() for pause in islice(pauses(), len(timers))]
    assert len(timers) >= 3 and timers == pytest.approx(expected, abs=0.01)


def test_a_week_without_a_database_does_not_fill_a_history() -> None:
    """A run is ended by the server at 51,200 events; each round makes a dozen, and takes at least 15 seconds."""
    starts = accumulate(pause.total_seconds() + 15 for pause in pauses())
    rounds = sum(1 for _ in takewhile(lambda at: at < 7 * DAY, starts))
    assert rounds * 12 < 51_200 / 4
