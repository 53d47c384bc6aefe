"""The answers that a run has received: matched with open interrupts, kept when early, counted when ignored."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from temporalio import workflow

from ..runtime.wire import COUNT_IGNORED, Answer, InterruptRef

_MAX_EARLY = 100
"""Answers kept for interrupts that are not open yet."""
MAX_BYTES = 1_000_000
"""Of one answer, of all that are kept early, and of what continues as new: Temporal takes twice that."""
_MAX_ID = 255
_MAX_IGNORED = 20
"""Ignored answers that the query still shows."""


class Answers:
    """Open interrupts and their answers. The first answer to an interrupt wins."""

    def __init__(self, early: Iterable[Answer] = (), *, asked: bool = False) -> None:
        self._open: dict[str, InterruptRef] = {}
        self._given: dict[str, Answer] = {}
        self._early: list[Answer] = list(early)
        self._used: set[str] = set()
        self.asked = asked
        """Whether the run has asked anything yet, also before it continued as new."""
        self.ignored_count = 0
        self.ignored: list[str] = []

    @property
    def waiting(self) -> tuple[InterruptRef, ...]:
        """The interrupts that nobody has answered yet, in the order in which they were opened."""
        return tuple(ref for key, ref in self._open.items() if key not in self._given)

    @property
    def open_refs(self) -> tuple[InterruptRef, ...]:
        """The interrupts whose answers are not committed yet."""
        return tuple(self._open.values())

    @property
    def unused(self) -> tuple[Answer, ...]:
        """What has to survive when the run continues as new."""
        given = (answer.model_copy(update={"interrupt_id": key}) for key, answer in self._given.items())
        return (*given, *self._early)

    @property
    def can_be_carried(self) -> bool:
        """Whether the run may continue as new with what is unused."""
        return sum(map(_size, self.unused)) <= MAX_BYTES

    def open(self, ref: InterruptRef) -> None:
        """An interrupt waits from now on; an answer that came early is taken."""
        self._open[ref.interrupt_id] = ref
        self.asked = True
        if self.answered(ref):
            return
        for answer in self._early:
            if answer.interrupt_id == ref.interrupt_id or (answer.interrupt_id is None and len(self.waiting) == 1):
                self._early.remove(answer)
                self._given[ref.interrupt_id] = answer
                return

    def take(self, ref: InterruptRef) -> Answer | None:
        """Close an interrupt; its answer, if there is one."""
        self._open.pop(ref.interrupt_id, None)
        self._used.add(ref.interrupt_id)
        return self._given.pop(ref.interrupt_id, None)

    def answered(self, ref: InterruptRef) -> bool:
        """Whether an answer to ``ref`` has come."""
        return ref.interrupt_id in self._given

    def knows(self, interrupt_id: str) -> bool:
        """Whether the interrupt is, or was, open in this execution."""
        return interrupt_id in self._open or interrupt_id in self._used

    def target(self, answer: Answer) -> InterruptRef | None:
        """The waiting interrupt that ``answer`` is for, ``None`` if there is none so far.

        Raises:
            ValueError: It was answered, or it is not clear which; says what to do.
        """
        waiting = {ref.interrupt_id: ref for ref in self.waiting}
        if answer.interrupt_id is None:
            if len(waiting) > 1:
                raise ValueError(f"{len(waiting)} interrupts are open; name one as interrupt_id: {', '.join(waiting)}")
            return next(iter(waiting.values()), None)
        if answer.interrupt_id not in waiting and self.knows(answer.interrupt_id):
            raise ValueError(f"interrupt {answer.interrupt_id} was answered already, or its time is up")
        return waiting.get(answer.interrupt_id)

    def give(self, ref: InterruptRef, answer: Answer) -> None:
        """Answer a waiting interrupt."""
        self._given[ref.interrupt_id] = answer

    def receive(self, raw: Any) -> None:
        """Whatever a ``resume`` signal brought: matched, kept for later, or ignored visibly. Never raises."""
        answer, problem = parse_answer(raw)
        if answer is None:
            self._ignore(problem)
            return
        try:
            ref = self.target(answer)
        except ValueError as exc:
            self._ignore(str(exc))
            return
        if ref is not None:
            self.give(ref, answer)
        elif answer.interrupt_id is None and (self.asked or any(one.interrupt_id is None for one in self._early)):
            # Sent twice, or late: the next question would be answered by somebody who has not seen it.
            self._ignore("no interrupt is open; name the one that is meant as interrupt_id")
        elif len(self._early) == _MAX_EARLY or sum(map(_size, [*self._early, answer])) > MAX_BYTES:
            self._ignore("too many answers that fit no open interrupt are kept already")
        else:
            self._early.append(answer)

    def _ignore(self, why: str) -> None:
        self.ignored_count += 1
        self.ignored = [*self.ignored, why][-_MAX_IGNORED:]
        count = workflow.extern_functions().get(COUNT_IGNORED)
        if count is not None and not workflow.unsafe.is_replaying():
            count()
        workflow.logger.warning("an answer was ignored: %s", why)


def parse_answer(raw: Any) -> tuple[Answer | None, str]:
    """A signal's payload as an answer; signals come from anybody, so nothing about them is trusted."""
    if not isinstance(raw, dict) or "value" not in raw:
        return None, 'an answer has the form {"interrupt_id": "...", "value": ...}'
    interrupt_id, by = raw.get("interrupt_id"), raw.get("by", "")
    if not (interrupt_id is None or isinstance(interrupt_id, str)) or not isinstance(by, str):
        return None, "interrupt_id and by are texts"
    if len(interrupt_id or "") > _MAX_ID:
        return None, f"an interrupt_id has at most {_MAX_ID} characters"
    answer = Answer(interrupt_id=interrupt_id or None, value=raw["value"], by=by[:255])
    if _size(answer) > MAX_BYTES:
        return None, f"an answer has at most {MAX_BYTES:,} bytes; store what is larger, and answer with its address"
    return answer, ""


def _size(answer: Answer) -> int:
    return len(json.dumps(answer.value))
