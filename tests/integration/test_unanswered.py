"""Questions that nobody answers in time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tenxgraph_temporal import InterruptExpired, OnTimeout, interrupt
from tenxgraph_temporal.runtime.client import RunFailed
from tenxgraph_temporal.runtime.errors import InputError

from ..support.app import App
from ..support.graphs import agent, call, results
from ..support.pausing import until_paused

pytestmark = pytest.mark.usefixtures("execution", "keeps_workflows")


async def test_time_that_is_up_already(app: App) -> None:
    def ask() -> str:
        return str(interrupt("?", timeout=timedelta(seconds=-5), on_timeout="the default"))

    _, state = await app.run(agent([ask], [call("ask", "1")]))
    assert results(state) == ["the default"]


async def test_what_happens_when_nobody_answers(app: App) -> None:
    def default() -> str:
        return str(interrupt("?", timeout=0.2, on_timeout="the default"))

    def error() -> str:
        return str(interrupt("?", timeout=0.2))

    def caught() -> str:
        try:
            return str(interrupt("?", timeout=0.2))
        except InterruptExpired:
            return "went on"

    calls = [call("default", "1"), call("error", "2"), call("caught", "3")]
    _, state = await app.run(agent([default, error, caught], calls))
    first, second, third = results(state)
    assert first == "the default"
    assert "InterruptExpired" in second
    assert third == "went on"


async def test_a_run_may_fail_when_nobody_answers(app: App) -> None:
    def ask() -> str:
        return str(interrupt("?", timeout=0.2, on_timeout=OnTimeout.FAIL))

    def waits_for_ever() -> str:
        return str(interrupt("?"))

    thread_id = app.thread()
    async with app.worker(agent([ask, waits_for_ever], [call("ask", "1"), call("waits_for_ever", "2")])):
        with pytest.raises(RunFailed, match="nobody answered") as failure:
            await (await app.start("agent", thread_id)).result()
    assert failure.value.code == "INTERRUPT_TIMEOUT"
    assert (await app.state(thread_id)).execution_meta.status == "error"


async def test_a_run_that_fails_while_somebody_is_asked_says_why(app: App, execution: str) -> None:
    """Not that nobody answered the one who is asked, who is not told either that an answer was accepted."""
    may_end = asyncio.Event()

    def ask() -> str:
        return str(interrupt("?"))

    async def slow() -> str:
        await may_end.wait()
        return "slow"

    def ask_in_vain() -> str:
        return str(interrupt("?", timeout=1, on_timeout=OnTimeout.FAIL))

    turn = [call("ask", "1"), call("slow", "2"), call("ask_in_vain", "3")]
    thread_id = app.thread()
    async with app.worker(agent([ask, slow, ask_in_vain], turn)):
        run = await app.start("agent", thread_id)
        if execution != "activity":  # which asks when all its calls have been made
            may_end.set()
        await until_paused(run, 2)
        (asked,) = [ref for ref in await run.interrupts() if ref.tool_call_id == "1"]
        if execution == "activity":
            await until_paused(run, 0)
            with pytest.raises(InputError, match="answered already, or its time is up"):
                await run.answer("late", interrupt_id=asked.interrupt_id)
        may_end.set()
        with pytest.raises(RunFailed, match=r"nobody answered interrupt int_\w+ \(tool:3:0\) within"):
            await run.result()
