"""One graph run: decides what runs next and where. What already happened is Postgres' to say.

Deterministic, and free of user code and I/O: everything that it needs to decide is in the ``Position`` that
each commit returns, so a run outlives any change of its graph.
"""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from ..runtime.wire import (
    BEGIN_ACTIVITY,
    CHECK_ANSWER_ACTIVITY,
    CLOSE_ACTIVITY,
    WORKFLOW_TYPE,
    Answer,
    BeginTask,
    Checked,
    CheckTask,
    CloseTask,
    InterruptRef,
    NodeTask,
    Position,
    RunInput,
    RunRef,
    RunResult,
    node_activity,
    workflow_id_of,
)
from .answers import Answers, parse_answer
from .dispatch import cancel_requested, code_of, reason_of, run_local, run_step
from .progress import Progress
from .settle import settle
from .tool_step import ToolStep

# Mistakes in workflow code would otherwise retry the workflow task for ever, which looks like a hang.
# `Exception` would include nondeterminism, which must wait for a fixed worker instead of failing the run.
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


# The run loop holds no user code, so the sandbox would guard nothing; replay tests guard determinism.
@workflow.defn(name=WORKFLOW_TYPE, sandboxed=False, failure_exception_types=_FAILURES)
class GraphRun:
    """The workflow type ``GraphRun``."""

    @workflow.init
    def __init__(self, run_input: RunInput) -> None:
        info = workflow.info()
        self._input = run_input
        run = RunRef(graph=run_input.graph, user_id=run_input.user_id, run_id=info.first_execution_run_id)
        self._run = run.compact(workflow_run_id=info.run_id)
        start = run_input.position or Position(version=0, step=0, node="", next="begin")
        self._answers = Answers(run_input.answers, asked=run_input.asked)
        self._progress = Progress(self._run, start, self._answers, shows_status=run_input.shows_status)
        self._closing: asyncio.Task[Position] | None = None

    @workflow.signal
    def resume(self, answer: Any) -> None:
        """Answer an open interrupt: ``{"interrupt_id": ..., "value": ...}``; no id is needed if only one is open.

        The first answer wins. One that comes early is kept; one that fits nothing is ignored, as ``status`` shows.
        """
        self._answers.receive(answer)

    @workflow.update(name="resume")
    async def checked_resume(self, answer: Any) -> str:
        """As the ``resume`` signal, but checked first; returns the id of the interrupt that was answered."""
        given, at = _parsed(answer), self._progress.position
        ref = self._target(given)
        asked = ref or InterruptRef(interrupt_id=given.interrupt_id or "", key="")
        task = CheckTask(run=self._run, interrupt=asked, answer=given)
        checked = await run_local(CHECK_ANSWER_ACTIVITY, task, Checked)
        if checked.problem:
            raise _refused(checked.problem)
        if ref is None:  # the thread shows it already; the completion of the activity that opened it is on its way
            given = given.model_copy(update={"interrupt_id": checked.interrupt_id})
            await workflow.wait_condition(
                lambda: (
                    self._answers.knows(checked.interrupt_id)
                    or self._progress.position is not at
                    or self._closing is not None
                )
            )
        ref = self._target(given)  # again: another answer may have come first
        if ref is None or self._closing is not None or self._progress.doomed:
            raise _refused("the run is not paused any more")
        self._answers.give(ref, given)
        return ref.interrupt_id

    @checked_resume.validator
    def _check_answer(self, answer: Any) -> None:
        self._target(_parsed(answer))

    def _target(self, answer: Answer) -> InterruptRef | None:
        try:
            return self._answers.target(answer)
        except ValueError as exc:
            raise _refused(str(exc)) from exc

    @workflow.query
    def interrupts(self) -> list[InterruptRef]:
        """The open interrupts. What they ask is in the thread's state."""
        return list(self._progress.waiting)

    @workflow.query
    def status(self) -> dict[str, Any]:
        """Where the run stands: ids, names and counts."""
        position = self._progress.position
        return {
            "thread_id": self._input.thread_id,
            "graph": self._input.graph,
            "status": "paused" if self._progress.waiting else "running",
            "version": position.version,
            "step": position.step,
            "node": position.node,
            "interrupts": [ref.model_dump(mode="json") for ref in self._progress.waiting],
            "ignored_answers": self._answers.ignored_count,
            "last_ignored": self._answers.ignored,
        }

    @workflow.run
    async def run(self, run_input: RunInput) -> RunResult:
        """Run the graph to its end.

        Raises:
            ApplicationError: The run failed; ``type`` is the error's code, and the state says why.
            CancelledError: The run was stopped; the state says so.
        """
        self._check_identity()
        cause: BaseException | None = None
        try:
            try:
                position = await self._to_the_end()
            except (ActivityError, ApplicationError) as exc:
                if cancel_requested():
                    raise asyncio.CancelledError from exc
                position, cause = await self._failed(exc), exc
        except asyncio.CancelledError:
            position = await self._close(CloseTask(run=self._run, status="stopped"))
            if position.code in ("", "STOPPED") and position.next != "end":
                raise  # otherwise the run had come to an end of its own while the cancel was on its way
        await workflow.wait_condition(workflow.all_handlers_finished)
        if position.next == "fail":
            raise ApplicationError(position.error or position.code, type=position.code, non_retryable=True) from cause
        return RunResult(thread_id=self._input.thread_id, version=position.version, step=position.step)

    def _check_identity(self) -> None:
        expected = workflow_id_of(self._input.thread_id)
        if workflow.info().workflow_id != expected:
            raise ApplicationError(
                f"a run of thread {self._input.thread_id!r} must have the workflow id {expected!r}, not "
                f"{workflow.info().workflow_id!r}: the id is what keeps a second run of the thread out",
                type="GRAPH_003",
                non_retryable=True,
            )

    async def _to_the_end(self) -> Position:
        progress = self._progress
        while progress.position.next in ("begin", "node", "tools"):
            if cancel_requested():
                raise asyncio.CancelledError
            if self._should_roll_over():
                await workflow.wait_condition(workflow.all_handlers_finished)
                self._roll_over()
            gates = [ref for ref in progress.position.interrupts if not ref.tool_call_id]
            if gates:
                waiting = asyncio.create_task(progress.wait(gates[0]))
                await settle([waiting], lambda: self._should_roll_over() and not progress.committing, self._roll_over)
                waiting.result()
            elif progress.position.next == "begin":
                progress.position = await self._begin()
            elif progress.position.next == "node":
                progress.position = await self._node(progress.position)
            else:
                await ToolStep(progress, self._should_roll_over, self._roll_over).run()
        return progress.position

    async def _begin(self) -> Position:
        info = workflow.info()
        task = BeginTask(
            run=self._run,
            input=self._input.input,
            config=self._input.config,
            reset=info.run_id != info.first_execution_run_id,
        )
        return await run_local(BEGIN_ACTIVITY, task, Position)

    async def _node(self, position: Position) -> Position:
        task = NodeTask(run=self._run, version=position.version, unsaved=position.unsaved, step=position.step)
        summary = f"{position.node} (step {position.step})"
        return await run_step(node_activity(position.node), task, Position, position.limits, summary)

    def _should_roll_over(self) -> bool:
        return workflow.info().is_continue_as_new_suggested() and self._answers.can_be_carried

    def _roll_over(self) -> None:
        """Continue as new, at a moment when no handler runs. The position and unused answers go along."""
        answers = self._answers
        rest = {"input": {}, "position": self._progress.position, "answers": answers.unused, "asked": answers.asked}
        workflow.continue_as_new(self._input.model_copy(update=rest))

    async def _failed(self, exc: ActivityError | ApplicationError) -> Position:
        """Save why the run ends, unless it had come to an end of its own."""
        code, reason = code_of(exc), reason_of(exc)
        position = await self._close(CloseTask(run=self._run, status="error", code=code, error=reason))
        if position.next == "fail" and not position.error:  # nothing of this run is in the thread
            return position.model_copy(update={"code": code, "error": reason})
        return position

    async def _close(self, task: CloseTask) -> Position:
        # In a task of its own, and only one: a cancel must not cut the commit that answers it or an error before it.
        if self._closing is None:
            self._closing = asyncio.create_task(run_local(CLOSE_ACTIVITY, task, Position))
        try:
            return await asyncio.shield(self._closing)
        except ActivityError as exc:
            error = f"{task.error} (and its end could not be saved: {reason_of(exc)})".lstrip()
            return Position(version=0, step=0, node="", next="fail", code=task.code or code_of(exc), error=error)


def _parsed(raw: Any) -> Answer:
    answer, problem = parse_answer(raw)
    if answer is None:
        raise _refused(problem)
    return answer


def _refused(why: str) -> ApplicationError:
    return ApplicationError(why, type="ANSWER_REFUSED", non_retryable=True)
