"""Handing work to activities: how long, how often, and what a failure means."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

from ..runtime.wire import (
    DEADLINE_GRACE,
    STORE_UNAVAILABLE,
    TOOL_ERROR,
    UNBOUNDED,
    UNREADABLE,
    WORKER_EXHAUSTED,
    WORKER_SHUTDOWN,
    Limits,
    Wire,
)

T = TypeVar("T")

_HEARTBEAT_TIMEOUT = timedelta(seconds=10)
_PASSING = (STORE_UNAVAILABLE, WORKER_SHUTDOWN, WORKER_EXHAUSTED)
"""Failures that say nothing about the step: it is tried again for as long as it takes."""
_LONGEST_PAUSE = timedelta(minutes=10)
"""How much later than a database that was away for half an hour or more a run may come back."""
_LONGEST_LOCAL_PAUSE = timedelta(seconds=1)
"""Between attempts at a local activity, within a workflow task; a longer one is a timer, and does not keep it open."""
_COMMIT_TIMEOUT = timedelta(seconds=60)
_CANCEL_PATIENCE = timedelta(seconds=10)
"""How long a cancel waits for a commit, e.g. while the database is down."""
_COMMIT_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=5), maximum_attempts=10
)
_NOT_AGAIN = "TemporalTimeout:StartToClose"
"""The server's name for the timeout after which a step must not run again: it had its time."""


async def run_local(name: str, task: Wire, result_type: type[T]) -> T:
    """A short activity in the worker that has the workflow: one history event, no task queue.

    A cancel waits for it: a commit that is under way comes to its end before the one that answers the cancel.
    """
    options: dict[str, Any] = {"start_to_close_timeout": _COMMIT_TIMEOUT, "retry_policy": _COMMIT_RETRY}
    running = asyncio.create_task(
        _until_it_passes(
            lambda: _locally(name, task, result_type, **options),
            lambda exc: _says_nothing(exc) or isinstance(exc.cause, TimeoutError),
        )
    )
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        with contextlib.suppress(asyncio.TimeoutError):  # the other one is Temporal's
            await workflow.wait_condition(running.done, timeout=_CANCEL_PATIENCE)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise


async def run_step(name: str, task: Wire, result_type: type[T], limits: Limits, summary: str) -> T:
    """A node or a tool call, within its limits; user code runs only here."""
    timeout = _longest_attempt(limits)
    return await _until_it_passes(
        lambda: workflow.execute_activity(
            name,
            task,
            result_type=result_type,
            task_queue=limits.task_queue,
            start_to_close_timeout=timeout,
            heartbeat_timeout=_HEARTBEAT_TIMEOUT,
            retry_policy=_retries(limits),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary,
        ),
        _says_nothing,
    )


async def try_locally(name: str, task: Wire, result_type: type[T], limits: Limits, summary: str) -> T | None:
    """A step in the worker that has the workflow, as ``run_step`` otherwise. ``None``: it has to be one of those."""
    try:
        return await _locally(
            name,
            task,
            result_type,
            start_to_close_timeout=_longest_attempt(limits),
            retry_policy=_retries(limits, but_for=_PASSING),
            local_retry_threshold=_LONGEST_LOCAL_PAUSE,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary,
        )
    except ActivityError as exc:
        if not _says_nothing(exc):
            raise
        if cancel_requested():
            raise asyncio.CancelledError from exc
        return None


async def _locally(name: str, task: Wire, result_type: type[T], **options: Any) -> T:
    """A local activity, whose failure the SDK raises bare; here it comes as any other activity's."""
    try:
        result: T = await workflow.execute_local_activity(name, task, result_type=result_type, **options)
        return result
    except (ApplicationError, TimeoutError) as exc:
        raise ActivityError(
            f"{name} failed",
            scheduled_event_id=0,
            started_event_id=0,
            identity="",
            activity_type=name,
            activity_id="",
            retry_state=None,
        ) from exc


def _longest_attempt(limits: Limits) -> timedelta:
    allowed = limits.attempt_timeout
    return UNBOUNDED if allowed is None else timedelta(seconds=allowed + DEADLINE_GRACE)


def _retries(limits: Limits, *, but_for: Sequence[str] = ()) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=timedelta(seconds=limits.retry_interval),
        maximum_interval=timedelta(seconds=10),
        maximum_attempts=limits.max_attempts,
        non_retryable_error_types=[_NOT_AGAIN, *but_for],
    )


async def _until_it_passes(make: Callable[[], Awaitable[T]], passes: Callable[[ActivityError], bool]) -> T:
    """Repeat an activity whose failure ``passes``: a database that is down, a deploy, missing keys."""
    for pause in pauses():
        try:
            return await make()
        except ActivityError as exc:
            if not passes(exc):
                raise
            if cancel_requested():  # it is spent: a pause here would not end, and the step be made once more
                raise asyncio.CancelledError from exc
        await workflow.sleep(pause, summary="waiting for the database or a worker")
    raise AssertionError("pauses have no end")


def pauses() -> Iterator[timedelta]:
    """Between the rounds of attempts: about a third of the time that has passed, so that a long outage does not fill
    the history; a full one would end the run.
    """
    pause = timedelta(seconds=1)
    while True:
        yield pause
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _says_nothing(exc: ActivityError) -> bool:
    """Whether an activity's failure says nothing about the step."""
    failure = exc.cause
    if not isinstance(failure, ApplicationError):
        return False
    if failure.type in _PASSING:
        return True
    # The SDK's own failure has no type; why the task could not be read is below it.
    return not failure.type and isinstance(failure.cause, ApplicationError) and failure.cause.type == UNREADABLE


def cancel_requested() -> bool:
    """Whether the current task was cancelled, also if what it was waiting for finished all the same."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_the_models(exc: ActivityError) -> bool:
    """Whether a call that Temporal gave up is the model's to react to; otherwise it ends the run."""
    if isinstance(exc.cause, TimeoutError):
        return exc.cause.type == TimeoutType.START_TO_CLOSE
    return isinstance(exc.cause, ApplicationError) and exc.cause.type == TOOL_ERROR


def code_of(exc: ActivityError | ApplicationError) -> str:
    """The error code of a failure."""
    cause = exc.cause if isinstance(exc, ActivityError) else exc
    if isinstance(cause, ApplicationError) and cause.type:
        return cause.type
    if isinstance(cause, TimeoutError) and cause.type != TimeoutType.HEARTBEAT:
        return "NODE_TIMEOUT_001"
    return "NODE_001"


def reason_of(exc: ActivityError | ApplicationError) -> str:
    """Why a step was given up, naming it."""
    if isinstance(exc, ApplicationError):
        return exc.message
    cause = exc.cause
    if isinstance(cause, ApplicationError):
        return cause.message
    if not isinstance(cause, TimeoutError):
        return f"{exc.activity_type} was given up: {cause or exc}"
    if cause.type == TimeoutType.HEARTBEAT:
        return (
            f"{exc.activity_type} lost its worker in each of its attempts, the last time on {exc.identity or '?'}; "
            "it may be what kills the workers: see their logs"
        )
    of_tool = cause.type == TimeoutType.START_TO_CLOSE and exc.activity_type.startswith("tool:")
    code = "NODE_TIMEOUT_002" if of_tool else "NODE_TIMEOUT_001"
    return f"[{code}] {exc.activity_type} exceeded its deadline and its worker did not say so"
