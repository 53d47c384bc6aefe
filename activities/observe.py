"""What the attempts at activities look like from outside: a span, and fields on whatever is logged meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import INVALID_SPAN, Span, StatusCode
from temporalio import activity

from ..runtime.telemetry.logs import log_fields
from ..runtime.telemetry.tracing import Attributes, Tracing
from ..runtime.tools.tool import Tool
from ..runtime.wire import BatchTask, NodeTask, Position, RunTask, ToolOutcome, ToolTask, name_in


@contextmanager
def observed(tracing: Tracing | None, task: RunTask, *, tool: Tool | None = None) -> Iterator[Span]:
    """Around an attempt at ``task``. ``tool`` is the one that it runs, where the activity's type does not say."""
    info = activity.info()
    name, node, call = name_in(info.activity_type), "", None
    if isinstance(task, ToolTask):
        call, node, name = task, task.node, tool.name if tool else name
    elif isinstance(task, NodeTask | BatchTask):
        node = name
    fields: dict[str, str | int] = {
        "thread_id": task.run.thread_id,
        "run_id": task.run.run_id,
        "attempt": info.attempt,
        "node": node,
        "tool": name if call else "",
        "message_id": call.message_id if call else "",
        "tool_call_id": call.tool_call_id if call else "",
    }
    with log_fields(**fields):
        if tracing is None:
            yield INVALID_SPAN
            return
        about: Attributes = {
            "gen_ai.agent.name": task.run.graph,
            "gen_ai.conversation.id": task.run.thread_id,
            "tenxgraph.run_id": task.run.run_id,
            "tenxgraph.attempt": info.attempt,
            "temporalWorkflowID": info.workflow_id or "",
            "temporalRunID": info.workflow_run_id or "",
            "temporalActivityID": info.activity_id,
        }
        if node:
            about = {**about, "tenxgraph.node": node}
        if isinstance(task, ToolTask | BatchTask | NodeTask):
            about = {**about, "tenxgraph.step": task.step}
        if call:
            about = {
                **about,
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": call.tool_call_id,
                "tenxgraph.message_id": call.message_id,
            }
        with tracing.span(_span_name(task, name, info.activity_type), about) as span:
            yield span


def _span_name(task: RunTask, name: str, activity_type: str) -> str:
    if isinstance(task, ToolTask):
        return f"execute_tool {name}"
    if isinstance(task, BatchTask):
        return f"batch {name}"
    return f"node {name}" if isinstance(task, NodeTask) else activity_type


def show_outcome(span: Span, result: object) -> None:
    """What came of the attempt, where it is no exception."""
    if isinstance(result, ToolOutcome):
        span.set_attribute("tenxgraph.outcome", result.status)
        if result.status == "failed":
            span.set_status(StatusCode.ERROR)
    elif isinstance(result, Position):
        span.set_attribute("tenxgraph.version", result.version)
        if result.next == "fail":
            span.set_attribute("error.type", result.code)
            span.set_status(StatusCode.ERROR)
