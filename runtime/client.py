"""Starting, watching and stopping runs from Python. Everything here can be done with a plain Temporal client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError, CancelledError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from .errors import InputError, TenxGraphError
from .limits import UNSET, Unset
from .search_attributes import attributes_of
from .state import Message
from .wire import WORKFLOW_TYPE, InterruptRef, RunInput, RunResult, workflow_id_of

_QUERY_TIMEOUT = 5.0
"""Seconds in which a worker tells what an open run waits for."""


class RunFailed(TenxGraphError):
    """A run ended with an error; ``code`` is the error's."""

    code = "RUN_FAILED"


class RunStopped(TenxGraphError):
    """A run was stopped; its thread can go on with a next run."""

    code = "RUN_STOPPED"


@dataclass(frozen=True)
class RunHandle:
    """A run that was started. ``workflow`` is Temporal's own handle."""

    thread_id: str
    workflow: WorkflowHandle[Any, RunResult]
    user_id: str | None = None
    """Whose the run has to be; ``None`` acts as operator."""

    async def result(self) -> RunResult:
        """Wait for the end.

        Raises:
            RunFailed: It failed; says why.
            RunStopped: It was stopped.
            InputError: There is no run of this thread, here and below.
        """
        await self._check_user()
        try:
            with self._found():
                return await self.workflow.result()
        except WorkflowFailureError as exc:
            cause = exc.cause
            if isinstance(cause, CancelledError):
                raise RunStopped(f"the run of thread {self.thread_id!r} was stopped") from exc
            if isinstance(cause, ApplicationError):
                raise RunFailed(cause.message, code=cause.type) from exc
            raise RunFailed(f"the run of thread {self.thread_id!r} ended: {cause}") from exc

    async def answer(self, value: Any, *, interrupt_id: str | None = None, by: str = "") -> str:
        """Answer an open interrupt; the id may be left out if it is the only one. Returns its id.

        Raises:
            InputError: There is no such interrupt, it was answered already, or the answer does not fit.
        """
        await self._check_user()
        try:
            with self._found():
                answered: str = await self.workflow.execute_update(
                    "resume", {"interrupt_id": interrupt_id, "value": value, "by": by}, result_type=str
                )
        except WorkflowUpdateFailedError as exc:
            cause = exc.cause
            raise InputError(cause.message if isinstance(cause, ApplicationError) else str(cause)) from exc
        return answered

    async def interrupts(self) -> list[InterruptRef]:
        """The open interrupts; what they ask is in the thread's state."""
        await self._check_user()
        with self._found():
            waiting: list[InterruptRef] = await self.workflow.query("interrupts", result_type=list[InterruptRef])
        return waiting

    async def stop(self) -> None:
        """Ask the run to stop: a Temporal cancellation."""
        await self._check_user()
        with self._found():
            await self.workflow.cancel()

    async def signal(self, value: Any, *, interrupt_id: str | None = None, by: str = "") -> None:
        """Answer as ``answer`` does, without a check and without a worker: kept until one is up."""
        await self._check_user()
        with self._found():
            await self.workflow.signal("resume", {"interrupt_id": interrupt_id, "value": value, "by": by})

    @contextmanager
    def _found(self) -> Iterator[None]:
        try:
            yield
        except RPCError as exc:
            if exc.status != RPCStatusCode.NOT_FOUND:
                raise
            raise InputError(
                f"no run of thread {self.thread_id!r} is open (workflow {self.workflow.id}): {exc.message}"
            ) from exc

    async def _check_user(self) -> None:
        """The owner is in the run's first event, which needs no worker to read."""
        if self.user_id is None:
            return
        try:
            async for event in self.workflow.fetch_history_events(page_size=1):
                payloads = event.workflow_execution_started_event_attributes.input.payloads
                (run_input,) = await self.workflow._client.data_converter.decode(payloads, [RunInput])
                if run_input.user_id == self.user_id:
                    return
                break
        except RPCError as exc:
            if exc.status != RPCStatusCode.NOT_FOUND:
                raise
        raise InputError(f"there is no run of thread {self.thread_id!r}")


async def _open_interrupts(run: RunHandle) -> list[str]:
    """Their ids; none where no worker is up to tell."""
    try:
        return [ref.interrupt_id for ref in await asyncio.wait_for(run.interrupts(), _QUERY_TIMEOUT)]
    except (TenxGraphError, RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError, TimeoutError):
        return []


class GraphClient:
    """Runs graphs through a Temporal client that has ``WirePlugin`` (see ``connect``)."""

    def __init__(self, client: Client, *, task_queue: str = "tenxgraph") -> None:
        self._client = client
        self._task_queue = task_queue
        self._searchable = True
        """Whether the namespace has our search attributes, as far as is known."""

    async def start(
        self,
        graph: str,
        thread_id: str,
        messages: str | Sequence[Message | Mapping[str, Any]] | None = None,
        *,
        state: Mapping[str, Any] | None = None,
        resume: Any = UNSET,
        interrupt_id: str | None = None,
        user_id: str = "anonymous",
        config: Mapping[str, Any] | None = None,
    ) -> RunHandle:
        """Start a run of ``graph`` on a thread: a new one, or one that goes on from where it stood.

        ``resume`` answers the interrupt of a thread whose run ended while it was paused; a run that is still open
        is answered through its handle. ``interrupt_id`` says which one, where several are open.

        Where an open run waits for an answer, config ``{"drop_interrupts": True}`` stops it first.

        Raises:
            InputError: A run of this thread is open; says what it waits for, if it waits for a person.
        """
        entered: dict[str, Any] = {}
        if messages is not None:
            items = [messages] if isinstance(messages, str) else messages
            entered["messages"] = [m.model_dump(mode="json") if isinstance(m, Message) else m for m in items]
        if state is not None:
            entered["state"] = dict(state)
        if not isinstance(resume, Unset):
            entered["resume"] = resume
        if interrupt_id is not None:
            entered["interrupt_id"] = interrupt_id
        run_input = RunInput(
            graph=graph, thread_id=thread_id, user_id=user_id, input=entered, config=dict(config or {})
        )
        while True:
            try:
                return RunHandle(thread_id, await self._start(run_input))
            except WorkflowAlreadyStartedError as exc:
                await self._end_open_run(run_input, exc)

    async def _end_open_run(self, run_input: RunInput, found: WorkflowAlreadyStartedError) -> None:
        """Stop the run that is in the way, if it waits for a person and its question may be dropped.

        Raises:
            InputError: It does not, or may not be; says what to do.
        """
        current = self.handle(run_input.thread_id, user_id=run_input.user_id)
        waits_for = await _open_interrupts(current)
        what, remedy = "is open", "wait for its end, or stop it first"
        if waits_for:
            what = f"waits for an answer to {', '.join(waits_for)}"
            remedy = "answer it, stop it, or drop the question with config {'drop_interrupts': True}"
        if not waits_for or run_input.config.get("drop_interrupts") is not True:
            raise InputError(
                f"a run of thread {run_input.thread_id!r} {what} (workflow {found.workflow_id}, run {found.run_id}); "
                f"{remedy}"
            ) from found
        with suppress(RunStopped, RunFailed, InputError):  # the last: it has ended meanwhile
            await current.stop()
            await current.result()

    async def _start(self, run_input: RunInput) -> WorkflowHandle[Any, RunResult]:
        """With the search attributes where the namespace has them, else with a memo that says the same."""
        if self._searchable:
            try:
                return await self._start_workflow(
                    run_input.model_copy(update={"shows_status": "search_attributes"}),
                    search_attributes=attributes_of(run_input),
                )
            except RPCError as exc:
                if exc.status != RPCStatusCode.INVALID_ARGUMENT or "search attribute" not in str(exc).lower():
                    raise
                self._searchable = False
        return await self._start_workflow(run_input.model_copy(update={"shows_status": "memo"}))

    async def _start_workflow(self, run_input: RunInput, **options: Any) -> WorkflowHandle[Any, RunResult]:
        handle: WorkflowHandle[Any, RunResult] = await self._client.start_workflow(
            WORKFLOW_TYPE,
            run_input,
            id=workflow_id_of(run_input.thread_id),
            task_queue=self._task_queue,
            result_type=RunResult,
            static_summary=f"{run_input.graph}: {run_input.thread_id}",
            **options,
        )
        return handle

    def handle(self, thread_id: str, *, user_id: str | None = None) -> RunHandle:
        """The latest run of a thread. With ``user_id``, a run of another user does not exist for this handle."""
        handle = self._client.get_workflow_handle(workflow_id_of(thread_id), result_type=RunResult)
        return RunHandle(thread_id, handle, user_id)

    async def run(self, graph: str, thread_id: str, messages: Any = None, **options: Any) -> RunResult:
        """Start a run and wait for its end; as ``start`` and ``RunHandle.result``."""
        return await (await self.start(graph, thread_id, messages, **options)).result()
