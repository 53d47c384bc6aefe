"""Commits that pause a run and let it go on: what is asked, and what was answered, is in Postgres first."""

from __future__ import annotations

from typing import Any

from temporalio import activity

from ..runtime.interrupt import (
    InterruptRequest,
    answer_problem,
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


class AnswerCommits:
    """Local activities around interrupts."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @activity.defn(name=PAUSE_ACTIVITY)
    @boundary
    async def pause(self, task: PauseTask) -> Position:
        """Show the open interrupts of a tool step in the state."""
        base = await self._host.states.at(
            task.run, task.version, task.unsaved, first_attempt=is_first_attempt(task.run)
        )
        if isinstance(base, Position):
            return base
        state = self._decode(task.run, base)
        requests = await self._requests(task.run, state, task.interrupts)
        show_requests(state, requests)
        names = "+".join(ref.interrupt_id for ref in task.interrupts)
        return await self._commit(task.run, base, state, task.interrupts, kind=f"pause/{names}")

    @activity.defn(name=ANSWER_ACTIVITY)
    @boundary
    async def answer(self, task: AnswerTask) -> Position:
        """Commit an answer, before the code that asked for it runs again."""
        base = await self._host.states.at(
            task.run, task.version, task.unsaved, first_attempt=is_first_attempt(task.run)
        )
        if isinstance(base, Position):
            return base
        state = self._decode(task.run, base)
        asked = {request.id: request for request in open_requests(state)}
        request = asked.pop(task.interrupt.interrupt_id, None)
        attributes = {"node": state.execution_meta.current_node}
        metrics = self._host.metrics
        (metrics.interrupts_expired if task.expired else metrics.interrupts_answered).add(1, attributes)
        if request is not None:
            value = expiry_value(request) if task.expired else task.answer.value
            if task.answer.by and isinstance(value, dict):
                value = {"by": task.answer.by, **value}
            take_answer(state, request, value)
        show_requests(state, [asked[ref.interrupt_id] for ref in task.remaining if ref.interrupt_id in asked])
        kind = f"answer/{task.interrupt.interrupt_id}"
        return await self._commit(task.run, base, state, task.remaining, kind=kind)

    @activity.defn(name=CHECK_ANSWER_ACTIVITY)
    @boundary
    async def check(self, task: CheckTask) -> Checked:
        """Whether an answer fits what the interrupt asks for."""
        head = await self._host.states.head(task.run)
        if head is None:
            return Checked(problem="the thread is gone")
        requests = open_requests(self._decode(task.run, head))
        request = next((r for r in requests if r.id == task.interrupt.interrupt_id), None)
        if request is None:
            loaded = await self._host.store.load_interrupts(task.run.thread_id, [task.interrupt.interrupt_id])
            request = next((InterruptRequest.model_validate(r) for r in loaded.values()), None)
        return Checked(problem=answer_problem(request, task.answer.value) if request else "")

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
        self, run: RunRef, base: Snapshot, state: AgentState, interrupts: tuple[InterruptRef, ...], *, kind: str
    ) -> Position:
        assert base.origin is not None
        before = Position.model_validate(base.origin.position)
        changes: dict[str, Any] = {
            "version": base.version + 1,
            "interrupts": interrupts,
            "resumed": before.resumed or kind.startswith("answer/"),
        }
        return await self._host.states.commit(
            run,
            base,
            state,
            before.model_copy(update=changes),
            step=before.step,
            node=before.node,
            kind=kind,
            config=base.config,
            known_ids=frozenset(message.message_id for message in state.context),
        )
