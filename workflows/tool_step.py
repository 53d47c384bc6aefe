"""One step of a tool node: the calls of a message in parallel, then one commit of their results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from temporalio.exceptions import ActivityError, ApplicationError

from ..runtime.wire import (
    COMMIT_TOOLS_ACTIVITY,
    BatchOutcome,
    BatchTask,
    CommitToolsTask,
    InterruptRef,
    NodeTask,
    Position,
    ToolCallRef,
    ToolOutcome,
    ToolTask,
    batch_activity,
    node_activity,
    tool_activity,
)
from .dispatch import is_the_models, reason_of, run_step, try_locally
from .progress import Progress
from .settle import settle


class ToolStep:
    """The calls of ``progress.position``. ``roll_over`` continues the workflow as new, where it should."""

    def __init__(self, progress: Progress, should_roll_over: Callable[[], bool], roll_over: Callable[[], None]) -> None:
        self._progress = progress
        self._step: Position = progress.position
        self._should_roll_over = should_roll_over
        self._roll_over = roll_over
        self._under_way = 0
        self._batches: dict[str, asyncio.Task[dict[str, ToolOutcome]]] = {}
        """The batch that runs a call for the first time."""

    async def run(self) -> None:
        """Run every call to its end and commit; a call's failure is a result like any other."""
        paused = {ref.tool_call_id: ref for ref in self._step.interrupts}
        known = [call for call in self._step.calls if call.known]
        if self._step.batch:
            fresh = [call for call in known if call.tool_call_id not in paused]
            batch = asyncio.create_task(self._batch(fresh, resumed=self._step.resumed))
            self._batches = {call.tool_call_id: batch for call in fresh}
        calls = [asyncio.create_task(self._call(call, paused.get(call.tool_call_id))) for call in known]
        outcomes = await self._settled(calls)
        progress, step = self._progress, self._step

        def task(at: Position) -> CommitToolsTask:
            return CommitToolsTask(
                run=progress.run,
                version=at.version,
                unsaved=at.unsaved,
                step=step.step,
                node=step.node,
                message_id=step.message_id,
                outcomes=tuple(o for o in outcomes if o.status == "failed" or o.unrecorded),
            )

        if not step.then:
            await progress.commit(COMMIT_TOOLS_ACTIVITY, task)
            return
        # The node that follows commits this step first: one activity less to schedule.
        commit = task(progress.position)
        following = NodeTask(run=progress.run, version=commit.version + 1, step=step.step + 1, tools=commit)
        summary = f"{step.then} (step {step.step + 1})"
        progress.position = await run_step(node_activity(step.then), following, Position, step.then_limits, summary)

    async def _call(self, call: ToolCallRef, paused: InterruptRef | None) -> ToolOutcome:
        """One call, however often it pauses; an answered call goes on without waiting for the others."""
        resumed = self._step.resumed
        try:
            while True:
                if paused is not None:
                    await self._progress.wait(paused)
                    resumed = True
                attempts = self._attempts_in_batch if self._step.batch else self._attempts
                outcome = await attempts(call, resumed=resumed)
                paused = outcome.interrupt
                if paused is None:
                    return outcome
        except (ActivityError, ApplicationError) as exc:
            self._progress.doom = self._progress.doom or exc
            raise

    async def _attempts(self, call: ToolCallRef, *, resumed: bool) -> ToolOutcome:
        limits = call.limits or self._step.call_limits
        task = ToolTask(
            run=self._progress.run,
            step=self._step.step,
            node=self._step.node,
            message_id=self._step.message_id,
            tool_call_id=call.tool_call_id,
            resumed=resumed,
            step_is_shorter=limits.step_is_shorter,
        )
        summary = f"{call.tool} {call.tool_call_id}"
        self._under_way += 1
        try:
            outcome = await run_step(tool_activity(call.tool), task, ToolOutcome, limits, summary)
            return outcome.model_copy(update={"tool_call_id": call.tool_call_id})
        except ActivityError as exc:
            if limits.step_is_shorter or not is_the_models(exc):
                raise
            # The worker could not even say that the call failed: the model is told, the siblings go on.
            return ToolOutcome(tool_call_id=call.tool_call_id, status="failed", error=reason_of(exc))
        finally:
            self._under_way -= 1

    async def _attempts_in_batch(self, call: ToolCallRef, *, resumed: bool) -> ToolOutcome:
        batch = self._batches.pop(call.tool_call_id, None)
        outcomes = await (batch or self._batch([call], resumed=resumed))
        return outcomes[call.tool_call_id]

    async def _batch(self, calls: list[ToolCallRef], *, resumed: bool) -> dict[str, ToolOutcome]:
        """The calls in one activity, bounded by the node's deadline; each call has its own inside."""
        if not calls:
            return {}
        step = self._step
        task = BatchTask(
            run=self._progress.run,
            step=step.step,
            message_id=step.message_id,
            calls=tuple(calls),
            call_limits=step.call_limits,
            resumed=resumed,
        )
        attempts = max((call.limits or step.call_limits).max_attempts for call in calls)
        limits = step.limits.model_copy(update={"max_attempts": attempts, "task_queue": step.call_limits.task_queue})
        summary = ", ".join(f"{call.tool} {call.tool_call_id}" for call in calls)[:200]
        self._under_way += 1
        try:
            name, outcome = batch_activity(step.node), None
            if step.local and not resumed:
                outcome = await try_locally(name, task, BatchOutcome, limits, summary)
            if outcome is None or outcome.declined:
                outcome = await run_step(name, task, BatchOutcome, limits, summary)
        finally:
            self._under_way -= 1
        return {one.tool_call_id: one for one in outcome.outcomes}

    async def _settled(self, calls: list[asyncio.Task[ToolOutcome]]) -> list[ToolOutcome]:
        """The outcomes in call order, once all have settled."""

        def should_roll_over() -> bool:
            return self._should_roll_over() and self._under_way == 0 and not self._progress.committing

        await settle(calls, should_roll_over, self._roll_over)
        failures = [failure for call in calls if (failure := call.exception())]
        if failures:
            raise self._progress.doom or failures[0]
        return [call.result() for call in calls]
