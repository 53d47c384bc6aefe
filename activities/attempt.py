"""One attempt at running user code: its heartbeats, its deadline, and how it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ..runtime.interrupt import GraphInterrupt
from ..runtime.thread_call import ThreadCall, ThreadInterrupted
from ..runtime.tools.context import RunContext
from ..runtime.wire import DEADLINE_GRACE, UNBOUNDED, WORKER_SHUTDOWN, Limits, RunRef

HEARTBEAT_INTERVAL = 1.0
"""Seconds between heartbeats; how soon a cancel is seen."""
LOCAL_GRACE = 5.0
"""Seconds that a local attempt has when its worker shuts down: nobody else would ever end it."""
MAX_DETAILS_BYTES = 1024 * 1024
"""Largest details of a heartbeat; Temporal refuses 2 MB, and the attempt with them."""


class CutShort(ApplicationError):
    """The worker is shutting down; the attempt is made again elsewhere and counts as nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was cut short by the shutdown of its worker", type=WORKER_SHUTDOWN)


def is_shutdown() -> bool:
    """Whether the cancel that this attempt has met is its worker's shutdown, not a stop of the run."""
    details = activity.cancellation_details()
    if details is None:  # Temporal always says why
        return activity.info().is_local
    return details.worker_shutdown


def is_first_attempt(run: RunRef) -> bool:
    """Whether nothing can have been done for this task before: its first attempt, in a run that was never reset."""
    info = activity.info()
    return info.attempt == 1 and info.workflow_run_id == run.run_id


@dataclass(frozen=True)
class Deadline:
    """Seconds that an attempt has, and whether they are the step's rather than the call's own."""

    seconds: float | None
    of_step: bool = False

    @classmethod
    def of_activity(cls, *, of_step: bool = False) -> Deadline:
        """What Temporal allows this attempt, less the grace that lets it end by itself."""
        timeout = activity.info().start_to_close_timeout
        if not timeout or timeout >= UNBOUNDED:
            return cls(None)
        return cls(timeout.total_seconds() - DEADLINE_GRACE, of_step=of_step)

    @classmethod
    def of_call(cls, limits: Limits) -> Deadline:
        """The deadline of one call among others in an activity."""
        return cls(limits.attempt_timeout, of_step=limits.step_is_shorter)


class DeadlineExceeded(Exception):
    """The code ran out of time."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__(f"no result within {deadline.seconds:g} s")
        self.seconds = deadline.seconds or 0.0
        self.of_step = deadline.of_step


class TriedToExit(Exception):
    """The code raised what would have ended its worker, as ``sys.exit()`` does, and with it the steps beside it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{error!r}; code in a worker must return or raise an Exception")


class Pulse:
    """Tells Temporal, while it is entered, that the attempt is alive, with the details that the code reported last.

    Of a local attempt Temporal wants to know nothing; it is ended ``LOCAL_GRACE`` after its worker began to shut down.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._local = activity.info().is_local
        self._grace = LOCAL_GRACE
        self._details = tuple(activity.info().heartbeat_details)  # kept for the attempt after this one
        self._converter = activity.payload_converter()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Pulse:
        self._timer = self._loop.call_later(HEARTBEAT_INTERVAL, self._beat)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def report(self, *details: Any) -> None:
        """Report progress, from any thread.

        Raises:
            ValueError: The details are no JSON, or too large. Told here: later it would cost the whole attempt.
        """
        try:
            size = sum(payload.ByteSize() for payload in self._converter.to_payloads(details))
        except Exception as exc:
            raise ValueError(f"heartbeat details must be JSON: {exc}") from exc
        if size > MAX_DETAILS_BYTES:
            raise ValueError(f"heartbeat details of {size} bytes are more than {MAX_DETAILS_BYTES}; report a reference")
        self._loop.call_soon_threadsafe(self._report, details)

    def _report(self, details: tuple[Any, ...]) -> None:
        self._details = details
        if not self._local:
            activity.heartbeat(*details)

    def _beat(self) -> None:
        if not self._local:
            activity.heartbeat(*self._details)
        elif activity.is_worker_shutdown() and self._task is not None:
            self._grace -= HEARTBEAT_INTERVAL
            if self._grace <= 0:
                self._task.cancel()
                return
        self._timer = self._loop.call_later(HEARTBEAT_INTERVAL, self._beat)


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

    Code that is out of time or cancelled sees ``context.cancelled``; async code is cancelled as well, and code in a
    thread that is ``interruptible`` is interrupted by an exception. It has ``grace`` to clean up. What it returns after
    its deadline is dropped. What it returns in spite of a cancel is its result, for its effects have happened, unless
    it had looked at ``context.cancelled`` and given up.

    Raises:
        DeadlineExceeded: Out of time.
        asyncio.CancelledError: The run is being stopped.
        CutShort: The worker is shutting down.
        WorkerExhausted: There is no thread for it; it was not called.
        BaseException: Whatever the code raised.
    """
    call: ThreadCall | None = None
    running: asyncio.Future[Any]
    if is_async:
        running = asyncio.ensure_future(_awaited(function, kwargs))
    else:
        call = ThreadCall(_called, {"function": function, "kwargs": kwargs}, name=name)
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
        gave_up = call is not None and context._told
        if running.done() and not (gave_up or running.cancelled() or running.exception()):
            return running.result()
        _abandon(running)
        if is_shutdown():
            raise CutShort(name) from None
        raise
    if not running.done():
        await cancel()
        _abandon(running)
        raise DeadlineExceeded(deadline)
    if running.cancelled():
        raise RuntimeError(f"{name} cancelled itself")
    return running.result()


async def _awaited(function: Callable[..., Awaitable[Any]], kwargs: dict[str, Any]) -> Any:
    try:
        return await function(**kwargs)
    except (asyncio.CancelledError, GraphInterrupt, GeneratorExit, KeyboardInterrupt):
        raise
    except Exception as exc:
        _check_readable(exc)
        raise
    except BaseException as exc:
        raise TriedToExit(exc) from exc


def _called(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    try:
        return function(**kwargs)
    except (GraphInterrupt, ThreadInterrupted):
        raise
    except Exception as exc:
        _check_readable(exc)
        raise
    except BaseException as exc:  # nobody cancels a thread, nor does Ctrl-C reach it
        raise TriedToExit(exc) from exc


def _check_readable(error: Exception) -> None:
    try:
        str(error)
    except Exception as exc:  # it would fail again wherever the error is shown, and hide what had failed
        raise RuntimeError(f"{type(error).__name__}, whose text raises {type(exc).__name__}") from None


def _abandon(running: asyncio.Future[Any]) -> None:
    """Whatever it still does or raises is nobody's result any more."""
    running.add_done_callback(lambda future: future.cancelled() or future.exception())
