"""Running tool calls: one per activity, or all calls of a message in one."""

from __future__ import annotations

import asyncio

from temporalio import activity

from ..runtime.wire import BatchOutcome, BatchTask, ToolOutcome, ToolTask, name_in
from .attempt import Deadline, Pulse
from .host import Host, boundary
from .observe import observed, show_outcome
from .tool_call import ToolCall


class ToolRunner:
    """The activities behind every ``tool:<name>``, and behind ``tools:<node>`` for nodes that run in batches."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @boundary
    async def run(self, task: ToolTask) -> ToolOutcome:
        """One call."""
        tool = self._host.graph(task.run.graph).tool(task.node, name_in(activity.info().activity_type))
        with Pulse() as pulse:
            deadline = Deadline.of_activity(of_step=task.step_is_shorter)
            return await ToolCall(self._host, task, tool, deadline, pulse).run()

    @boundary
    async def run_batch(self, task: BatchTask) -> BatchOutcome:
        """The calls of one message, concurrently; each has its own deadline, record, error and interrupt.

        A later attempt replays what finished. An error that ends the run is raised when all calls have settled. A local
        attempt is made only where the step is fresh; see ``FreshSteps``.
        """
        local = activity.info().is_local
        if local and (activity.is_worker_shutdown() or not self._host.fresh.take(task.run, task.step)):
            return BatchOutcome(declined=True)
        try:
            with Pulse() as pulse:
                return await self._run_batch(task, pulse)
        except Exception:
            if local:
                self._host.fresh.add(task.run, task.step)
            raise

    async def _run_batch(self, task: BatchTask, pulse: Pulse) -> BatchOutcome:
        graph, node = self._host.graph(task.run.graph), name_in(activity.info().activity_type)
        calls = []
        for call in task.calls:
            one = ToolTask(
                run=task.run,
                step=task.step,
                node=node,
                message_id=task.message_id,
                tool_call_id=call.tool_call_id,
                resumed=task.resumed,
            )
            deadline = Deadline.of_call(call.limits or task.call_limits)
            calls.append(ToolCall(self._host, one, graph.tool(node, call.tool), deadline, pulse))
        running = [asyncio.ensure_future(self._in_batch(call)) for call in calls]
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            for future in running:
                future.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise
        failures = [failure for future in running if (failure := future.exception())]
        if failures:
            raise failures[0]
        outcomes = zip(task.calls, running, strict=True)
        return BatchOutcome(
            outcomes=tuple(
                future.result().model_copy(update={"tool_call_id": call.tool_call_id}) for call, future in outcomes
            )
        )

    async def _in_batch(self, call: ToolCall) -> ToolOutcome:
        with observed(self._host.tracing, call.task, tool=call.tool) as span:
            outcome = await call.run()
            show_outcome(span, outcome)
            return outcome
