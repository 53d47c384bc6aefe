"""Where telemetry enters Temporal: the caller's trace into a run, the run's into its activities, and whose run it is
into the workflow's log lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from opentelemetry import context as otel
from temporalio import client, worker, workflow

from ..wire import COUNT_IGNORED, WORKFLOW_TYPE, RunInput, thread_id_of
from .logs import log_fields
from .run_spans import RunSpans
from .tracing import Tracing, context_in, with_context


class CallersTrace(client.Interceptor):
    """Gives a run, and what is sent to it, the context of the caller's span, if there is one."""

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:
        """See Temporal's interceptor."""
        return _ClientOutbound(next)


class _ClientOutbound(client.OutboundInterceptor):
    async def start_workflow(self, input: client.StartWorkflowInput) -> client.WorkflowHandle[Any, Any]:
        input.headers = with_context(input.headers)
        return await super().start_workflow(input)

    async def signal_workflow(self, input: client.SignalWorkflowInput) -> None:
        input.headers = with_context(input.headers)
        await super().signal_workflow(input)

    async def start_workflow_update(self, input: client.StartWorkflowUpdateInput) -> client.WorkflowUpdateHandle[Any]:
        input.headers = with_context(input.headers)
        return await super().start_workflow_update(input)


class RunTelemetry(worker.Interceptor):
    """Follows runs through a worker. ``tracing`` is ``None`` where nothing is traced."""

    def __init__(self, tracing: Tracing | None, count_ignored: Callable[[], None]) -> None:
        self._tracing = tracing
        self._count_ignored = count_ignored

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        """See Temporal's interceptor."""
        return next if self._tracing is None else _ActivityInbound(next)

    def workflow_interceptor_class(
        self, input: worker.WorkflowInterceptorClassInput
    ) -> type[worker.WorkflowInboundInterceptor] | None:
        """See Temporal's interceptor."""
        input.unsafe_extern_functions[COUNT_IGNORED] = self._count_ignored
        traced = self._tracing

        class Inbound(_WorkflowInbound):
            tracing = traced

        return Inbound


class _ActivityInbound(worker.ActivityInboundInterceptor):
    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        token = otel.attach(context_in(input.headers))
        try:
            return await super().execute_activity(input)
        finally:
            otel.detach(token)


class _WorkflowInbound(worker.WorkflowInboundInterceptor):
    tracing: Tracing | None = None
    spans: RunSpans | None = None

    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_WorkflowOutbound(outbound, self))

    async def execute_workflow(self, input: worker.ExecuteWorkflowInput) -> Any:
        with _fields():
            run_input = input.args[0] if _is_ours() and input.args else None
            if self.tracing is None or not isinstance(run_input, RunInput):
                return await super().execute_workflow(input)
            self.spans = RunSpans(self.tracing, run_input)
            try:
                result = await super().execute_workflow(input)
            except (Exception, asyncio.CancelledError, workflow.ContinueAsNewError) as exc:
                self.spans.ended(exc)
                raise
            self.spans.ended(None)
            return result

    async def handle_signal(self, input: worker.HandleSignalInput) -> None:
        if self.spans is not None:
            self.spans.received(f"signal {input.signal}", input.headers)
        with _fields():
            await super().handle_signal(input)

    async def handle_update_handler(self, input: worker.HandleUpdateInput) -> Any:
        if self.spans is not None:
            self.spans.received(f"update {input.update}", input.headers)
        with _fields():
            return await super().handle_update_handler(input)


class _WorkflowOutbound(worker.WorkflowOutboundInterceptor):
    def __init__(self, next: worker.WorkflowOutboundInterceptor, inbound: _WorkflowInbound) -> None:
        super().__init__(next)
        self._inbound = inbound

    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[Any]:
        self._schedule(input)
        return super().start_activity(input)

    def start_local_activity(self, input: worker.StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        self._schedule(input)
        return super().start_local_activity(input)

    def continue_as_new(self, input: worker.ContinueAsNewInput) -> NoReturn:
        if self._inbound.spans is not None:
            input.headers = self._inbound.spans.continued(input.headers)
        super().continue_as_new(input)

    def _schedule(self, input: worker.StartActivityInput | worker.StartLocalActivityInput) -> None:
        if self._inbound.spans is not None and input.args:
            input.headers = self._inbound.spans.scheduled(input.activity, input.args[0], input.headers)


def _is_ours() -> bool:
    return workflow.info().workflow_type == WORKFLOW_TYPE  # a worker may be shared with somebody else's workflows


def _fields() -> AbstractContextManager[None]:
    info = workflow.info()
    if not _is_ours():
        return log_fields()
    return log_fields(thread_id=thread_id_of(info.workflow_id), run_id=info.first_execution_run_id)
