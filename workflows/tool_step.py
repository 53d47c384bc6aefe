"""One step of a tool node: the calls of a message in parallel, then one commit of their results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from ..runtime.wire import (
    COMMIT_TOOLS_ACTIVITY,
    CommitToolsTask,
    InterruptRef,
    Position,
    ToolCallRef,
    ToolOutcome,
    ToolTask,
    tool_activity,
)
from .dispatch import is_the_models, reason_of, run_step
from .progress import Progress


class ToolStep:
    """The calls of ``progress.position``. ``roll_over`` continues the workflow as new."""

    def __init__(self, progress: Progress, roll_over: Callable[[], Awaitable[None]]) -> None:
        self._progress = progress
        self._step: Position = progress.position
        self._roll_over = roll_over
        self._under_way = 0

    async def run(self) -> None:
        """Run every call to its end and commit; a call's failure is a result like any other."""
        paused = {ref.tool_call_id: ref for ref in self._step.interrupts}
        calls = [
            asyncio.create_task(self._call(call, paused.get(call.tool_call_id)))
            for call in self._step.calls
            if call.known
        ]
        outcomes = await self._settled(calls)
        await self._progress.commit(
            COMMIT_TOOLS_ACTIVITY,
            lambda version: CommitToolsTask(
                run=self._progress.run,
                version=version,
                step=self._step.step,
                node=self._step.node,
                message_id=self._step.message_id,
                outcomes=tuple(o for o in outcomes if o.status == "failed" or o.unrecorded),
            ),
        )

    async def _call(self, call: ToolCallRef, paused: InterruptRef | None) -> ToolOutcome:
        """One call, however often it pauses; an answered call goes on without waiting for the others."""
        resumed = self._step.resumed
        try:
            while True:
                if paused is not None:
                    await self._progress.wait(paused)
                    resumed = True
                outcome = await self._attempts(call, resumed=resumed)
                paused = outcome.interrupt
                if paused is None:
                    return outcome
        except (ActivityError, ApplicationError):
            self._progress.doomed = True
            raise

    async def _attempts(self, call: ToolCallRef, *, resumed: bool) -> ToolOutcome:
        task = ToolTask(
            run=self._progress.run,
            version=self._step.version,
            step=self._step.step,
            node=self._step.node,
            message_id=self._step.message_id,
            tool_call_id=call.tool_call_id,
            tool=call.tool,
            timeout=call.limits.timeout,
            step_timeout=call.limits.step_timeout,
            resumed=resumed,
        )
        summary = f"{call.tool} {call.tool_call_id}"
        self._under_way += 1
        try:
            return await run_step(tool_activity(call.tool), task, ToolOutcome, call.limits, summary)
        except ActivityError as exc:
            if not is_the_models(exc):
                raise
            # The worker could not even say that the call failed: the model is told, the siblings go on.
            return ToolOutcome(tool_call_id=call.tool_call_id, status="failed", error=reason_of(exc))
        finally:
            self._under_way -= 1

    async def _settled(self, calls: list[asyncio.Task[ToolOutcome]]) -> list[ToolOutcome]:
        """The outcomes in call order, once all have settled; a cancel reaches them all and waits for them too."""

        def settled() -> bool:
            return all(call.done() for call in calls)

        def idle() -> bool:  # nothing runs, everything waits for people: the one time to roll over within a step
            quiet = self._under_way == 0 and not self._progress.committing
            return quiet and workflow.info().is_continue_as_new_suggested()

        try:
            await workflow.wait_condition(lambda: settled() or idle())
            if not settled():
                await self._roll_over()
        except asyncio.CancelledError:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            raise
        failures = [failure for call in calls if (failure := call.exception())]
        if failures:
            raise failures[0]
        return [call.result() for call in calls]
