"""What takes days, in moments: Temporal skips the time in which nothing but a timer is waited for."""

from __future__ import annotations

from datetime import timedelta

from tenxgraph_temporal import (
    AgentState,
    InterruptExpired,
    RunHandle,
    interrupt,
)
from tenxgraph_temporal.runtime.devstack import skip_time

from ..support.app import App, eventually
from ..support.graphs import agent, call

DAY = 86_400.0


def results(state: AgentState) -> list[str]:
    return [message.text() for message in state.context if message.role == "tool"]


async def paused(app: App, run: RunHandle, questions: int = 1) -> None:
    async def all_open() -> bool:
        return len(await run.interrupts()) == questions

    await eventually(all_open)


async def elapsed(run: RunHandle) -> timedelta:
    """How long the run took by the workflow's clock."""
    events = (await run.workflow.fetch_history()).events
    took: timedelta = events[-1].event_time.ToDatetime() - events[0].event_time.ToDatetime()
    return took


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
        await paused(app, run, 3)
        await skip_time(app.client, run.workflow)
        await run.result()
    first, second, third = results(await app.state(thread_id))
    assert first == "the default"
    assert "InterruptExpired" in second
    assert third == "went on"
    assert timedelta(days=30) <= await elapsed(run) < timedelta(days=30, minutes=5)
