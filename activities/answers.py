"""Commits that pause a run and let it go on: what is asked, and what was answered, is in Postgres first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from temporalio import activity

from ..runtime.errors import StaleStateError
from ..runtime.interrupt import (
    InterruptRequest,
    answer_problem,
    answers_of,
    expiry_value,
    open_requests,
    show_requests,
    take_answer,
)
from ..runtime.state import AgentState
from ..runtime.storage.snapshot import Snapshot
from ..runtime.wire import (
    ANSWER_ACTIVITY,
    CHECK_ANSWER_ACTIVITY,
    PAUSE_ACTIVITY,
    AnswerTask,
    Checked,
    CheckTask,
    InterruptRef,
    PauseTask,
    Position,
    RunRef,
)
from .attempt import is_first_attempt
from .host import Host, boundary


@dataclass(frozen=True)
class Change:
    """What a commit makes of a state: its kind, and the interrupts that are open then."""

    kind: str
    interrupts: tuple[InterruptRef, ...]
    resumed: bool = False


class AnswerCommits:
    """Local activities around interrupts."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @activity.defn(name=PAUSE_ACTIVITY)
    @boundary
    async def pause(self, task: PauseTask) -> Position:
        """Show the open interrupts of a tool step in the state."""

        async def change(state: AgentState, before: Position) -> Change | None:
            refs = _joined(before.interrupts, task.interrupts, answered=answers_of(state))
            if refs == before.interrupts:
                return None
            show_requests(state, await self._requests(task.run, state, refs))
            return Change("pause/" + "+".join(ref.interrupt_id for ref in task.interrupts), refs)

        return await self._commit(task, change)

    @activity.defn(name=ANSWER_ACTIVITY)
    @boundary
    async def answer(self, task: AnswerTask) -> Position:
        """Commit an answer, before the code that asked for it runs again."""
        ref = task.interrupt

        async def change(state: AgentState, before: Position) -> Change | None:
            is_shown = any(shown.interrupt_id == ref.interrupt_id for shown in before.interrupts)
            if not is_shown and (not ref.tool_call_id or ref.key in answers_of(state)):
                return None
            for request in await self._requests(task.run, state, (ref,)):
                value = expiry_value(request) if task.expired else task.answer.value
                if task.answer.by and isinstance(value, dict):
                    value = {"by": task.answer.by, **value}
                take_answer(state, request, value)
            others = tuple(r for r in before.interrupts if r.interrupt_id != ref.interrupt_id)
            refs = _joined(others, task.remaining, answered=answers_of(state))
            show_requests(state, await self._requests(task.run, state, refs))
            return Change(f"answer/{ref.interrupt_id}", refs, resumed=True)

        position = await self._commit(task, change)
        metrics = self._host.metrics
        (metrics.interrupts_expired if task.expired else metrics.interrupts_answered).add(1, {"node": position.node})
        return position

    @activity.defn(name=CHECK_ANSWER_ACTIVITY)
    @boundary
    async def check(self, task: CheckTask) -> Checked:
        """Whether an answer fits what the interrupt asks for."""
        head = await self._host.states.head(task.run)
        if head is None:
            return Checked(problem="the thread is gone")
        shown = {request.id: request for request in open_requests(self._decode(task.run, head))}
        wanted = task.interrupt.interrupt_id
        if not wanted and len(shown) == 1:
            (wanted,) = shown
        request = shown.get(wanted)
        if request is None and task.interrupt.key:
            loaded = await self._host.store.load_interrupts(task.run.thread_id, [wanted])
            request = next((InterruptRequest.model_validate(r) for r in loaded.values()), None)
        if request is None and not task.interrupt.key:
            return Checked(problem=_not_open(wanted, shown))
        unfit = answer_problem(request, task.answer.value) if request else ""
        return Checked(problem=unfit and f"the answer does not fit: {unfit}", interrupt_id=wanted)

    async def _requests(self, run: RunRef, state: AgentState, refs: tuple[InterruptRef, ...]) -> list[InterruptRequest]:
        """What the interrupts ask, in the order of ``refs``: from the state, else from where the calls left it."""
        known = {request.id: request for request in open_requests(state)}
        missing = [ref.interrupt_id for ref in refs if ref.interrupt_id not in known]
        if missing:
            rows = await self._host.store.load_interrupts(run.thread_id, missing)
            known |= {key: InterruptRequest.model_validate(row) for key, row in rows.items()}
        return [known[ref.interrupt_id] for ref in refs if ref.interrupt_id in known]

    def _decode(self, run: RunRef, snapshot: Snapshot) -> AgentState:
        return snapshot.decode(self._host.graph(run.graph).state_class)

    async def _commit(
        self,
        task: PauseTask | AnswerTask,
        change: Callable[[AgentState, Position], Awaitable[Change | None]],
    ) -> Position:
        """Commit ``change`` on the version that the task starts from, or on what this run has committed since.

        A workflow task that fails is made again, with what has come in meanwhile, and then its commits may come in
        another order than those of the first time, which are in the store. So a commit of ours that is not there yet
        is made on top of the head. ``change`` returns ``None`` where the head has it already.
        """
        states, run = self._host.states, task.run
        base = await states.at(run, task.version, task.unsaved, first_attempt=is_first_attempt(run))
        while True:
            moved = isinstance(base, Position)
            head = await states.head(run) if isinstance(base, Position) else base
            if head is None or head.origin is None or head.origin.run_id != run.run_id:
                raise StaleStateError(
                    run.thread_id, expected_version=task.version, current_version=head.version if head else 0
                )
            before = Position.model_validate(head.origin.position)
            if moved and (before.step != task.step or before.next not in ("node", "tools")):
                return before  # the step is over
            state = self._decode(run, head)
            known_ids = frozenset(message.message_id for message in state.context)
            made = await change(state, before)
            if made is None:
                return before
            after = before.model_copy(
                update={
                    "version": head.version + 1,
                    "unsaved": 0,
                    "interrupts": made.interrupts,
                    "resumed": before.resumed or made.resumed,
                }
            )
            base = await states.commit(
                run,
                head,
                state,
                after,
                step=before.step,
                node=before.node,
                kind=made.kind,
                config=head.config,
                known_ids=known_ids,
            )
            if base is after:
                return after


def _joined(
    shown: tuple[InterruptRef, ...], others: tuple[InterruptRef, ...], *, answered: Mapping[str, Any]
) -> tuple[InterruptRef, ...]:
    """``shown``, and those of ``others`` that are neither among them nor answered."""
    known = {ref.interrupt_id for ref in shown}
    return (*shown, *(ref for ref in others if ref.interrupt_id not in known and ref.key not in answered))


def _not_open(interrupt_id: str, shown: Collection[str]) -> str:
    if not shown:
        return "the run is not paused: no interrupt is open"
    if interrupt_id:
        return f"no open interrupt has the id {interrupt_id}; open: {', '.join(shown)}"
    return f"{len(shown)} interrupts are open; name one as interrupt_id: {', '.join(shown)}"
