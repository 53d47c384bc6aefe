"""What takes days, in moments: Temporal skips the time in which nothing but a timer is waited for."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType

from tenxgraph_temporal import END, InterruptExpired, OnTimeout, RunHandle, StateGraph, interrupt
from tenxgraph_temporal.runtime.client import RunFailed
from tenxgraph_temporal.runtime.devstack import skip_time

from ..support.app import App, eventually
from ..support.graphs import agent, call, results
from ..support.pausing import until_paused

DAY = 86_400.0


async def elapsed(run: RunHandle) -> timedelta:
    """How long the run took by the workflow's clock."""
    events = (await run.workflow.fetch_history()).events
    took: timedelta = events[-1].event_time.ToDatetime() - events[0].event_time.ToDatetime()
    return took


async def event_types(run: RunHandle) -> list[EventType.ValueType]:
    return [event.event_type for event in (await run.workflow.fetch_history()).events]


async def last_event_is(run: RunHandle, expected: EventType.ValueType) -> bool:
    return (await event_types(run))[-1] == expected


async def test_each_question_has_its_own_deadline_of_days(app: App) -> None:
    """One default after a day, one error after two, one that its code handles after thirty."""

    def default() -> str:
        return str(interrupt("?", timeout=DAY, on_timeout="the default"))

    def error() -> str:
        return str(interrupt("?", timeout=2 * DAY))

    def caught() -> str:
        try:
            return str(interrupt("?", timeout=30 * DAY))
        except InterruptExpired:
            return "went on"

    thread_id = app.thread()
    async with app.worker(
        agent([default, error, caught], [call("default", "1"), call("error", "2"), call("caught", "3")])
    ):
        run = await app.start("agent", thread_id)
        await until_paused(run, 3)
        await skip_time(app.client, run.workflow)
        await run.result()
    first, second, third = results(await app.state(thread_id))
    assert first == "the default"
    assert "InterruptExpired" in second
    assert third == "went on"
    assert timedelta(days=30) <= await elapsed(run) < timedelta(days=30, minutes=5)


async def test_a_run_fails_after_a_week_without_an_answer(app: App) -> None:
    def ask() -> str:
        return str(interrupt("?", timeout=7 * DAY, on_timeout=OnTimeout.FAIL))

    thread_id = app.thread()
    async with app.worker(agent([ask], [call("ask", "1")])):
        run = await app.start("agent", thread_id)
        await until_paused(run)
        await skip_time(app.client, run.workflow)
        with pytest.raises(RunFailed, match=r"nobody answered .* within 7 days"):
            await run.result()
    assert (await app.state(thread_id)).execution_meta.status == "error"
    assert timedelta(days=7) <= await elapsed(run)


async def test_a_deadline_that_passes_while_no_worker_is_up(app: App) -> None:
    graph = StateGraph(name="asks").add_node("ask", lambda state: str(interrupt("?", timeout=DAY, on_timeout="nobody")))
    asks = graph.set_entry_point("ask").add_edge("ask", END).compile()
    thread_id = app.thread()
    async with app.worker(asks):
        run = await app.start("asks", thread_id)
        await until_paused(run)
        # A worker that goes before its workflow task is recorded leaves one open, and then no time is skipped.
        await eventually(lambda: last_event_is(run, EventType.EVENT_TYPE_TIMER_STARTED))

    async def fired() -> bool:
        # Asked again and again: without a worker, the server has been seen to do nothing about the first time.
        await skip_time(app.client, run.workflow, skip=False)
        await skip_time(app.client, run.workflow)
        await asyncio.sleep(1)
        return EventType.EVENT_TYPE_TIMER_FIRED in await event_types(run)

    try:
        await eventually(fired, timeout=60)
    except TimeoutError:
        pytest.fail(f"no time was skipped: {[EventType.Name(event) for event in await event_types(run)]}")
    async with app.worker(asks):
        await run.result()
    assert (await app.state(thread_id)).context[-1].text() == "nobody"


async def test_an_answer_in_time_stops_the_clock(app: App) -> None:
    """Two questions; an answer to the one leaves the other its deadline."""

    def ask(name: str) -> str:
        return str(interrupt(name, timeout=3 * DAY, on_timeout="nobody"))

    thread_id = app.thread()
    async with app.worker(agent([ask], [call("ask", "1", name="a"), call("ask", "2", name="b")])):
        run = await app.start("agent", thread_id)
        await until_paused(run, 2)
        first = next(ref for ref in await run.interrupts() if ref.tool_call_id == "1")
        await run.answer("ada", interrupt_id=first.interrupt_id)
        await skip_time(app.client, run.workflow)
        await run.result()
    assert results(await app.state(thread_id)) == ["ada", "nobody"]
    assert timedelta(days=3) <= await elapsed(run) < timedelta(days=4)
