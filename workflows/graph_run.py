"""One graph run: decides what runs next and where. What already happened is Postgres' to say.

Deterministic, and free of user code and I/O: everything that it needs to decide is in the ``Position`` that
each commit returns, so a run outlives any change of its graph.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

from ..runtime.wire import (
    BEGIN_ACTIVITY,
    CLOSE_ACTIVITY,
    COMMIT_TOOLS_ACTIVITY,
    STORE_UNAVAILABLE,
    TOOL_ERROR,
    WORKER_SHUTDOWN,
    WORKFLOW_TYPE,
    BeginTask,
    CloseTask,
    CommitToolsTask,
    Limits,
    NodeTask,
    Position,
    RunInput,
    RunRef,
    RunResult,
    ToolCallRef,
    ToolOutcome,
    ToolTask,
    Wire,
    node_activity,
    tool_activity,
    workflow_id_of,
)

T = TypeVar("T")

_HEARTBEAT_TIMEOUT = timedelta(seconds=10)
_DEADLINE_GRACE = timedelta(seconds=15)
"""Beyond the in-process deadline, which fires first and cancels the code where it runs."""
_UNBOUNDED = timedelta(days=3650)
_PASSING = (STORE_UNAVAILABLE, WORKER_SHUTDOWN)
"""Failures that say nothing about the step: it is tried again for as long as it takes."""
_COMMIT_TIMEOUT = timedelta(seconds=60)
_COMMIT_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=5), maximum_attempts=10
)
_NOT_AGAIN = "TemporalTimeout:StartToClose"
"""The server's name for the timeout after which a step must not run again: it had its time."""

# Mistakes in workflow code would otherwise retry the workflow task for ever, which looks like a hang.
# `Exception` would include nondeterminism, which must wait for a fixed worker instead of failing the run.
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


# The run loop holds no user code, so the sandbox would guard nothing; replay tests guard determinism.
@workflow.defn(name=WORKFLOW_TYPE, sandboxed=False, failure_exception_types=_FAILURES)
class GraphRun:
    """The workflow type ``GraphRun``."""

    @workflow.init
    def __init__(self, run_input: RunInput) -> None:
        info = workflow.info()
        self._input = run_input
        self._run = RunRef(
            graph=run_input.graph,
            thread_id=run_input.thread_id,
            user_id=run_input.user_id,
            run_id=info.first_execution_run_id,
        )
        self._position = run_input.position

    @workflow.run
    async def run(self, run_input: RunInput) -> RunResult:
        """Run the graph to its end.

        Raises:
            ApplicationError: The run failed; ``type`` is the error's code, and the state says why.
            CancelledError: The run was stopped; the state says so.
        """
        self._check_identity()
        try:
            try:
                position = await self._to_the_end()
            except ActivityError as exc:
                if _cancel_requested():
                    raise asyncio.CancelledError from exc
                position = await self._failed(exc)
        except asyncio.CancelledError:
            position = await self._close(CloseTask(run=self._run, status="stopped"))
            if position.next != "end":  # it may have reached its end while the cancel was on its way
                raise
        if position.next == "fail":
            raise ApplicationError(position.error or position.code, type=position.code, non_retryable=True)
        return RunResult(thread_id=self._run.thread_id, version=position.version, step=position.step)

    def _check_identity(self) -> None:
        expected = workflow_id_of(self._run.thread_id)
        if workflow.info().workflow_id != expected:
            raise ApplicationError(
                f"a run of thread {self._run.thread_id!r} must have the workflow id {expected!r}, not "
                f"{workflow.info().workflow_id!r}: the id is what keeps a second run of the thread out",
                type="GRAPH_003",
                non_retryable=True,
            )

    async def _to_the_end(self) -> Position:
        if self._position is None:
            info = workflow.info()
            begun_before = info.run_id != info.first_execution_run_id
            self._position = await self._commit(
                BEGIN_ACTIVITY,
                BeginTask(run=self._run, input=self._input.input, config=self._input.config, reset=begun_before),
            )
        while self._position.next in ("node", "tools"):
            if _cancel_requested():
                raise asyncio.CancelledError
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(self._input.model_copy(update={"input": {}, "position": self._position}))
            step = self._node if self._position.next == "node" else self._tools
            self._position = await step(self._position)
        return self._position

    async def _node(self, position: Position) -> Position:
        task = NodeTask(
            run=self._run,
            version=position.version,
            step=position.step,
            node=position.node,
            timeout=position.limits.timeout,
        )
        return await _activity(
            node_activity(position.node),
            task,
            Position,
            position.limits,
            f"{position.node} (step {position.step})",
        )

    async def _tools(self, position: Position) -> Position:
        calls = [asyncio.create_task(self._tool(position, call)) for call in position.calls if call.known]
        outcomes = await _settled(calls)
        return await self._commit(
            COMMIT_TOOLS_ACTIVITY,
            CommitToolsTask(
                run=self._run,
                version=position.version,
                step=position.step,
                node=position.node,
                message_id=position.message_id,
                outcomes=tuple(o for o in outcomes if o.status == "failed" or o.unrecorded),
            ),
        )

    async def _tool(self, position: Position, call: ToolCallRef) -> ToolOutcome:
        task = ToolTask(
            run=self._run,
            version=position.version,
            step=position.step,
            node=position.node,
            message_id=position.message_id,
            tool_call_id=call.tool_call_id,
            tool=call.tool,
            timeout=call.limits.timeout,
            step_timeout=call.limits.step_timeout,
        )
        try:
            return await _activity(
                tool_activity(call.tool), task, ToolOutcome, call.limits, f"{call.tool} {call.tool_call_id}"
            )
        except ActivityError as exc:
            if not _is_the_models(exc):
                raise
            # The worker could not even say that the call failed: the model is told, the siblings go on.
            return ToolOutcome(tool_call_id=call.tool_call_id, status="failed", error=_reason(exc))

    async def _failed(self, exc: ActivityError) -> Position:
        """Save why the run ends, unless it had come to an end of its own."""
        code, reason = _code(exc), _reason(exc)
        position = await self._close(CloseTask(run=self._run, status="error", code=code, error=reason))
        if position.next == "fail" and not position.error:  # nothing of this run is in the thread
            return position.model_copy(update={"code": code, "error": reason})
        return position

    async def _close(self, task: CloseTask) -> Position:
        try:
            # In a task of its own: a cancel must not cut the very commit that answers it.
            return await asyncio.shield(asyncio.create_task(self._commit(CLOSE_ACTIVITY, task)))
        except ActivityError as exc:
            error = f"{task.error} (and its end could not be saved: {_reason(exc)})".lstrip()
            return Position(version=0, step=0, node="", next="fail", code=task.code or _code(exc), error=error)

    async def _commit(self, name: str, task: Wire) -> Position:
        return await _until_it_passes(
            lambda: workflow.execute_local_activity(
                name,
                task,
                result_type=Position,
                start_to_close_timeout=_COMMIT_TIMEOUT,
                retry_policy=_COMMIT_RETRY,
            )
        )


async def _activity(name: str, task: Wire, result_type: type[T], limits: Limits, summary: str) -> T:
    timeout = _UNBOUNDED if limits.timeout is None else timedelta(seconds=limits.timeout) + _DEADLINE_GRACE
    step = None if limits.step_timeout is None else timedelta(seconds=limits.step_timeout) + _DEADLINE_GRACE
    return await _until_it_passes(
        lambda: workflow.execute_activity(
            name,
            task,
            result_type=result_type,
            task_queue=limits.task_queue,
            start_to_close_timeout=timeout,
            schedule_to_close_timeout=step,
            heartbeat_timeout=_HEARTBEAT_TIMEOUT,
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=limits.retry_interval),
                maximum_interval=timedelta(seconds=10),
                maximum_attempts=limits.max_attempts,
                non_retryable_error_types=[_NOT_AGAIN],
            ),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary,
        )
    )


async def _until_it_passes(make: Callable[[], Awaitable[T]]) -> T:
    """Repeat an activity whose failure says nothing about the step: a database that is down, a deploy."""
    pause = timedelta(seconds=1)
    while True:
        try:
            return await make()
        except ActivityError as exc:
            if not (isinstance(exc.cause, ApplicationError) and exc.cause.type in _PASSING):
                raise
            if _cancel_requested() and exc.cause.type == WORKER_SHUTDOWN:
                raise asyncio.CancelledError from exc
        await workflow.sleep(pause, summary="waiting for the database or a worker")
        pause = min(pause * 2, timedelta(seconds=30))


async def _settled(tasks: list[asyncio.Task[T]]) -> list[T]:
    """The outcomes in order, once every task has settled; a cancel reaches them all and waits for them too."""
    if tasks:
        try:
            await workflow.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await workflow.wait(tasks)
            raise
    return [task.result() for task in tasks]


def _cancel_requested() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_the_models(exc: ActivityError) -> bool:
    """Whether a call that Temporal gave up is the model's to react to; otherwise it ends the run."""
    if isinstance(exc.cause, TimeoutError):
        return exc.cause.type == TimeoutType.START_TO_CLOSE
    return isinstance(exc.cause, ApplicationError) and exc.cause.type == TOOL_ERROR


def _code(exc: ActivityError) -> str:
    cause = exc.cause
    if isinstance(cause, ApplicationError) and cause.type:
        return cause.type
    if isinstance(cause, TimeoutError) and cause.type != TimeoutType.HEARTBEAT:
        return "NODE_TIMEOUT_001"
    return "NODE_001"


def _reason(exc: ActivityError) -> str:
    """Why an activity was given up, naming it."""
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
    code = "NODE_TIMEOUT_002" if cause.type == TimeoutType.START_TO_CLOSE else "NODE_TIMEOUT_001"
    return f"[{code}] {exc.activity_type} exceeded its deadline and its worker did not say so"
