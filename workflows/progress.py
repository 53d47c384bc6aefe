"""Where a run stands, and how it waits for people."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from ..runtime.search_attributes import STATUS
from ..runtime.wire import (
    ANSWER_ACTIVITY,
    PAUSE_ACTIVITY,
    Answer,
    AnswerTask,
    InterruptRef,
    PauseTask,
    Position,
    RunRef,
    Wire,
)
from .answers import Answers
from .dispatch import run_local


class Progress:
    """The run's position, moved only by commits, one at a time: each starts from the version of the one before."""

    def __init__(self, run: RunRef, position: Position, answers: Answers, *, shows_status: str) -> None:
        self.run = run
        self.answers = answers
        self._position = position
        self._shows_status = shows_status
        self._status = "paused" if position.interrupts else "running"
        self.doom: BaseException | None = None
        """What ends the run with this step: nobody needs to answer any more, and who waits for that fails, too."""
        self._commits = asyncio.Lock()
        # Before anything runs: a handler may run before `run` does, and in a replay in another order.
        self._open_new()

    @property
    def position(self) -> Position:
        """Where the run stands since the last commit."""
        return self._position

    @position.setter
    def position(self, position: Position) -> None:
        self._position = position
        self._open_new()
        self.show()

    def _open_new(self) -> None:
        """From now on, what the position asks can be answered, whether or not somebody waits for it yet."""
        for ref in self._position.interrupts:
            if not self.answers.knows(ref.interrupt_id):
                self.answers.open(ref)

    @property
    def doomed(self) -> bool:
        """Whether the run ends with this step."""
        return self.doom is not None

    @property
    def committing(self) -> bool:
        """Whether a commit is under way."""
        return self._commits.locked()

    @property
    def waiting(self) -> tuple[InterruptRef, ...]:
        """The interrupts that wait for an answer and whose questions are in the thread's state."""
        asked = {ref.interrupt_id for ref in self.position.interrupts}
        return tuple(ref for ref in self.answers.waiting if ref.interrupt_id in asked)

    async def commit(self, name: str, task: Callable[[Position], Wire]) -> None:
        """Commit what ``task`` makes of the current position."""
        async with self._commits:
            self.position = await run_local(name, task(self.position), Position)

    async def wait(self, ref: InterruptRef) -> None:
        """Wait for the answer to an interrupt, durably, and commit it before the code that asked runs again.

        Raises:
            ApplicationError: Nobody answered, and the run ends for that or another reason.
        """
        if ref.timeout is not None and ref.expires_at is None:
            ref = ref.model_copy(update={"expires_at": workflow.time() + ref.timeout})
            self._remember(ref)
        self.answers.open(ref)
        if ref.interrupt_id not in {shown.interrupt_id for shown in self.position.interrupts}:
            await self.commit(
                PAUSE_ACTIVITY,
                lambda at: PauseTask(
                    run=self.run,
                    version=at.version,
                    unsaved=at.unsaved,
                    step=at.step,
                    interrupts=self.answers.open_refs,
                ),
            )
        self.show()
        expired = not await self._answer_came(ref)
        if expired or self.doomed:
            self.answers.take(ref)  # from now on, nobody is told that an answer was accepted
        if self.doomed or (expired and ref.on_timeout == "fail"):
            when = f"within {timedelta(seconds=ref.timeout)}" if expired and ref.timeout else "before the run ended"
            raise ApplicationError(
                f"nobody answered interrupt {ref.interrupt_id} ({ref.key}) {when}",
                type="INTERRUPT_TIMEOUT",
                non_retryable=True,
            )

        def task(at: Position) -> AnswerTask:
            answer = self.answers.take(ref) or Answer()
            return AnswerTask(
                run=self.run,
                version=at.version,
                unsaved=at.unsaved,
                step=at.step,
                interrupt=ref,
                answer=answer,
                expired=expired,
                remaining=self.answers.open_refs,
            )

        await self.commit(ANSWER_ACTIVITY, task)
        self.show()

    def _remember(self, ref: InterruptRef) -> None:
        """When a question expires has to survive when the run continues as new."""
        known = self._position.interrupts
        refs = tuple(ref if ref.interrupt_id == shown.interrupt_id else shown for shown in known)
        self._position = self._position.model_copy(update={"interrupts": refs})

    async def _answer_came(self, ref: InterruptRef) -> bool:
        left = None if ref.expires_at is None else max(0.0, ref.expires_at - workflow.time())
        try:
            await workflow.wait_condition(lambda: self.answers.answered(ref) or self.doomed, timeout=left)
        except TimeoutError:
            return False
        return True

    def show(self) -> None:
        """Tell Temporal's UI where the run stands."""
        position, waiting = self._position, self.waiting
        details = f"`{position.node}`, step {position.step}" if position.node else ""
        if waiting:
            asked = "\n".join(f"- `{ref.interrupt_id}` {ref.key}" for ref in waiting)
            details = f"{details}\n\nWaiting for an answer:\n{asked}"
        workflow.set_current_details(details)
        status = "paused" if waiting else "running"
        if status != self._status and position.next not in ("end", "fail"):
            self._status = status
            if self._shows_status == "search_attributes":
                workflow.upsert_search_attributes([STATUS.value_set(status)])
            elif self._shows_status == "memo":
                workflow.upsert_memo({STATUS.name: status})
