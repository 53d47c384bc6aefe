"""What a run is doing, read from its history as it grows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from temporalio.api.enums.v1 import EventType, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.exceptions import FailureError

from .wire import ToolOutcome

_PREFIXES = ("node:", "tool:")
_WORKERS_FAULTS = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR,
)


@dataclass(frozen=True, kw_only=True)
class StepEvent:
    """Something that happened to a node or a tool call. ``activity`` is ``node:<name>`` or ``tool:<name>``.

    It is ``workflow task`` where a worker could not go on with the run itself, for lack of a key or the right version:
    it is tried again until one can.
    """

    activity: str
    what: Literal["scheduled", "completed", "replayed", "paused", "failed", "timed out", "cancelled"]
    attempt: int = 0
    worker: str = ""
    detail: str = ""


async def follow(client: Client, workflow_id: str, run_id: str | None) -> AsyncIterator[StepEvent]:
    """The steps of a run, from its beginning until it is closed; over continue-as-new.

    Temporal writes an attempt into the history when it ends for good; attempts that are retried meanwhile are in
    ``retries``.
    """
    while True:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        steps = _Steps(client)
        next_run_id = ""
        async for event in handle.fetch_history_events(wait_new_event=True):
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                next_run_id = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
            step = await steps.read(event)
            if step is not None:
                yield step
        if not next_run_id:
            return
        run_id = next_run_id


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A step that is under way. ``failure`` is why its last attempt ended."""

    activity: str
    activity_id: str
    attempt: int
    failure: str


async def pending_steps(client: Client, workflow_id: str) -> list[Pending]:
    """Nodes and tool calls that the latest run waits for."""
    description = await client.get_workflow_handle(workflow_id).describe()
    return [
        Pending(
            activity=pending.activity_type.name,
            activity_id=pending.activity_id,
            attempt=pending.attempt,
            failure=await _reason(client.data_converter, pending.last_failure)
            if pending.HasField("last_failure")
            else "",
        )
        for pending in description.raw_description.pending_activities
    ]


class _Steps:
    """Joins the events of one execution: a step's name is in the first, its attempt in the second."""

    def __init__(self, client: Client) -> None:
        self._converter = client.data_converter
        self._names: dict[int, str] = {}
        self._attempts: dict[int, tuple[int, str]] = {}

    async def read(self, event: HistoryEvent) -> StepEvent | None:
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            task = event.workflow_task_failed_event_attributes
            if task.cause not in _WORKERS_FAULTS:
                return None
            reason = await _reason(self._converter, task.failure)
            return StepEvent(activity="workflow task", what="failed", attempt=1, worker=task.identity, detail=reason)
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            name = event.activity_task_scheduled_event_attributes.activity_type.name
            self._names[event.event_id] = name
            return StepEvent(activity=name, what="scheduled") if name.startswith(_PREFIXES) else None
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            self._attempts[started.scheduled_event_id] = (started.attempt, started.identity)
            return None
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            done = event.activity_task_completed_event_attributes
            step = self._step(done.scheduled_event_id, "completed")
            if step is None or not step.activity.startswith("tool:"):
                return step
            (outcome,) = await self._converter.decode(list(done.result.payloads), [ToolOutcome])
            return self._step(done.scheduled_event_id, _WHAT[outcome.status], outcome.error or "")
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
            failed = event.activity_task_failed_event_attributes
            return self._step(failed.scheduled_event_id, "failed", await _reason(self._converter, failed.failure))
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
            late = event.activity_task_timed_out_event_attributes
            return self._step(late.scheduled_event_id, "timed out", await _reason(self._converter, late.failure))
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
            return self._step(event.activity_task_canceled_event_attributes.scheduled_event_id, "cancelled")
        return None

    def _step(self, scheduled_id: int, what: _What, detail: str = "") -> StepEvent | None:
        name = self._names.get(scheduled_id, "")
        if not name.startswith(_PREFIXES):
            return None
        attempt, worker = self._attempts.get(scheduled_id, (1, ""))
        return StepEvent(activity=name, what=what, attempt=attempt, worker=worker, detail=detail)


_What = Literal["scheduled", "completed", "replayed", "paused", "failed", "timed out", "cancelled"]
_WHAT: dict[str, _What] = {
    "ran": "completed",
    "replayed": "replayed",
    "failed": "failed",
    "interrupted": "paused",
}


async def _reason(converter: DataConverter, failure: Failure) -> str:
    if failure.HasField("timeout_failure_info"):
        kind = TimeoutType.Name(failure.timeout_failure_info.timeout_type).removeprefix("TIMEOUT_TYPE_")
        return "its worker was lost" if kind == "HEARTBEAT" else f"timeout ({kind.lower().replace('_', ' ')})"
    readable = Failure()
    readable.CopyFrom(failure)
    decoded = await converter.decode_failure(readable)
    return decoded.message if isinstance(decoded, FailureError) else str(decoded)
