"""One attempt at running user code: its heartbeats, its deadline, and how it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ..runtime.thread_call import ThreadCall
from ..runtime.tools.context import RunContext
from ..runtime.wire import DEADLINE_GRACE, UNBOUNDED, WORKER_SHUTDOWN, RunRef

HEARTBEAT_INTERVAL = 1.0
"""Seconds between heartbeats; how soon a cancel is seen."""


class CutShort(ApplicationError):
    """The worker is shutting down; the attempt is made again elsewhere and counts as nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was cut short by the shutdown of its worker", type=WORKER_SHUTDOWN)


def is_first_attempt(run: RunRef) -> bool:
    """Whether nothing can have been done for this task before: its first attempt, in a run that was never reset."""
    info = activity.info()
    return info.attempt == 1 and info.workflow_run_id == run.run_id


@dataclass(frozen=True)
class Deadline:
    """Seconds that are left for an attempt, and whether it is the step's time that runs out first."""

    seconds: float | None
    of_step: bool = False

    @classmethod
    def of_activity(cls) -> Deadline:
        """What Temporal allows this attempt, less the grace that lets it end by itself."""
        info = activity.info()
        return cls.within(_allowed(info.start_to_close_timeout), _allowed(info.schedule_to_close_timeout))

    @classmethod
    def within(cls, timeout: float | None, step_timeout: float | None) -> Deadline:
        """``timeout`` for the attempt, ``step_timeout`` for the step since it was scheduled."""
        if step_timeout is None:
            return cls(timeout)
        spent = (datetime.now(UTC) - activity.info().scheduled_time).total_seconds()
        left = max(0.0, step_timeout - max(0.0, spent))
        return cls(timeout) if timeout is not None and timeout <= left else cls(left, of_step=True)


def _allowed(timeout: timedelta | None) -> float | None:
    """The deadline behind one of Temporal's timeouts; without one, or with the longest, there is none."""
    if not timeout or timeout >= UNBOUNDED:
        return None
    return timeout.total_seconds() - DEADLINE_GRACE


class DeadlineExceeded(Exception):
    """The code ran out of time."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__(f"no result within {deadline.seconds:g} s")
        self.seconds = deadline.seconds or 0.0
        self.of_step = deadline.of_step


@contextlib.asynccontextmanager
async def heartbeats(context: RunContext) -> AsyncIterator[None]:
    """Tell Temporal that the attempt is alive, with the details that the code reported last."""
    loop = asyncio.get_running_loop()
    details: tuple[Any, ...] = ()
    timer: asyncio.TimerHandle | None = None

    def report(*new: Any) -> None:
        nonlocal details
        details = new
        activity.heartbeat(*details)

    def pulse() -> None:
        nonlocal timer
        activity.heartbeat(*details)
        timer = loop.call_later(HEARTBEAT_INTERVAL, pulse)

    def report_from_any_thread(*new: Any) -> None:
        loop.call_soon_threadsafe(report, *new)

    context._beat = report_from_any_thread
    timer = loop.call_later(HEARTBEAT_INTERVAL, pulse)
    try:
        yield
    finally:
        timer.cancel()


async def run_code(
    function: Callable[..., Any],
    kwargs: dict[str, Any],
    *,
    name: str,
    is_async: bool,
    context: RunContext,
    deadline: Deadline,
    grace: timedelta,
    interruptible: bool = False,
) -> Any:
    """Call user code and wait for it, at most until its deadline.

    Code that is out of time or cancelled sees ``context.cancelled``; async code is cancelled as well. It has
    ``grace`` to clean up; what it returns after its deadline is dropped, what it returns in spite of a cancel
    is its result, for its effects have happened. Code in a thread that is ``interruptible`` is interrupted by an
    exception; other code in a thread is left to itself.

    Raises:
        DeadlineExceeded: Out of time.
        asyncio.CancelledError: The run is being stopped.
        CutShort: The worker is shutting down.
        BaseException: Whatever the code raised.
    """
    call: ThreadCall | None = None
    running: asyncio.Future[Any]
    if is_async:
        running = asyncio.ensure_future(function(**kwargs))
    else:
        call = ThreadCall(function, kwargs, name=name)
        running = call.future

    async def cancel() -> None:
        context._cancelled.set()
        if call is None:
            running.cancel()
        elif interruptible:
            call.interrupt()
        await asyncio.wait({running}, timeout=grace.total_seconds())

    try:
        await asyncio.wait({running}, timeout=deadline.seconds)
    except asyncio.CancelledError:
        await cancel()
        if running.done() and not running.cancelled() and running.exception() is None:
            return running.result()
        _abandon(running)
        details = activity.cancellation_details()
        if details is not None and details.worker_shutdown:
            raise CutShort(name) from None
        raise
    if not running.done():
        await cancel()
        _abandon(running)
        raise DeadlineExceeded(deadline)
    if running.cancelled():
        raise RuntimeError(f"{name} cancelled itself")
    return running.result()


def _abandon(running: asyncio.Future[Any]) -> None:
    """Whatever it still does or raises is nobody's result any more."""
    running.add_done_callback(lambda future: future.cancelled() or future.exception())
