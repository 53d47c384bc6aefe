"""The spans of a run, made in its workflow: the same ones on every worker and in every replay, and shown once.

A workflow's code runs again and again: after a crash, on another worker, whenever it left a worker's cache. So the ids
and times of its spans follow from the history alone, a span is ended only where the history is new, and nothing but
the ended ones is ever exported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import FailureError

from ..wire import BatchTask, NodeTask, RunInput, ToolTask, name_in
from .tracing import Attributes, Tracing, context_in, with_context


class RunSpans:
    """One execution's span, and that of the tool step under way: activities belong to either."""

    def __init__(self, tracing: Tracing, run_input: RunInput) -> None:
        info = workflow.info()
        self._tracing = tracing
        self._run_ids = (info.first_execution_run_id, info.run_id)
        self._caller = context_in(info.headers)
        self._about: Attributes = {
            "gen_ai.agent.name": run_input.graph,
            "gen_ai.conversation.id": run_input.thread_id,
            "tenxgraph.run_id": info.first_execution_run_id,
            "temporalWorkflowID": info.workflow_id,
            "temporalRunID": info.run_id,
        }
        self._span = tracing.settled_span(
            f"invoke_agent {run_input.graph}",
            run=self._run_ids,
            key="run",
            parent=self._caller,
            start_time=int(info.start_time.timestamp() * 1e9),
            attributes={**self._about, "gen_ai.operation.name": "invoke_agent"},
        )
        self._step: tuple[int, Span] | None = None

    def scheduled(self, activity: str, task: object, headers: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """The headers of an activity that starts now."""
        if isinstance(task, ToolTask | BatchTask):
            self._enter_step(task.step, task.node if isinstance(task, ToolTask) else name_in(activity))
        elif isinstance(task, NodeTask):
            self._leave_step()
        return with_context(headers, _inside(self._step[1] if self._step else self._span))

    def continued(self, headers: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """The headers of the execution that goes on from here: all of them are children of the first one."""
        first = self._caller if workflow.info().continued_run_id else _inside(self._span)
        return with_context(headers, first)

    def received(self, name: str, headers: Mapping[str, Payload]) -> None:
        """A signal or update came, perhaps from another trace."""
        sender = trace.get_current_span(context_in(headers)).get_span_context()
        self._span.add_event(name, timestamp=workflow.time_ns())
        if sender.is_valid:
            self._span.add_link(sender, {"temporal.message": name})

    def ended(self, error: BaseException | None) -> None:
        """The execution ended, if that is what ``error`` means."""
        if error is None:
            status = "completed"
        elif isinstance(error, workflow.ContinueAsNewError):
            status = "continued"
        elif isinstance(error, asyncio.CancelledError):
            status = "stopped"
        elif isinstance(error, FailureError) or workflow.is_failure_exception(error):
            status = "failed"
            self._tracing.mark_failed(self._span, error)
        else:
            return  # only this attempt at a workflow task failed
        self._leave_step()
        self._span.set_attribute("tenxgraph.run_status", status)
        _end(self._span)

    def _enter_step(self, step: int, node: str) -> None:
        if self._step is not None and self._step[0] == step:
            return
        self._leave_step()
        span = self._tracing.settled_span(
            f"node {node}",
            run=self._run_ids,
            key=f"step/{step}",
            parent=_inside(self._span),
            start_time=workflow.time_ns(),
            attributes={**self._about, "tenxgraph.node": node, "tenxgraph.step": step},
        )
        self._step = (step, span)

    def _leave_step(self) -> None:
        if self._step is not None:
            _end(self._step[1])
            self._step = None


def _inside(span: Span) -> Context:
    return trace.set_span_in_context(span, Context())


def _end(span: Span) -> None:
    # Eviction from a worker's cache counts as replaying, too.
    if not workflow.unsafe.is_replaying():
        span.end(workflow.time_ns())
