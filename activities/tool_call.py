"""One attempt at one tool call under the ledger: look up, run, record at once."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from ..runtime.command import Command
from ..runtime.errors import (
    EncodingError,
    InputError,
    NodeTimeoutError,
    RetryableError,
    StoreUnavailable,
    TenxGraphError,
)
from ..runtime.interrupt import GraphInterrupt, InterruptRequest, Scope, answers_of, interrupt_scope
from ..runtime.state import AgentState
from ..runtime.state.encoding import dump_json
from ..runtime.storage.contract import Json, LedgerEntry, LedgerTransaction
from ..runtime.storage.thread_states import Snapshot
from ..runtime.tools.approval import ask_about_doubt, ask_approval
from ..runtime.tools.context import ToolContext
from ..runtime.tools.identity import idempotency_key, ledger_key
from ..runtime.tools.merge import changed_fields
from ..runtime.tools.result import (
    CallResult,
    ToolResult,
    call_metadata,
    describe_error,
    failure,
    from_envelope,
    result_message,
)
from ..runtime.tools.schema import ArgumentError
from ..runtime.tools.tool import Tool
from ..runtime.wire import TOOL_ERROR, ToolOutcome, ToolTask
from .attempt import CutShort, Deadline, DeadlineExceeded, Pulse, run_code
from .claims import Claims
from .host import Host

logger = logging.getLogger(__name__)

REMOTE_REASON = "remote_tool_call"
ERROR_CHARS = 500
"""Longest error text in a history."""
MAX_CARRIED_BYTES = 1024 * 1024
"""Largest result that crosses Temporal when the ledger could not take it."""


class _LostRace(Exception):
    """Another attempt recorded the call while this one was in its transaction."""


class ToolCall:
    """One attempt at one call to ``tool``."""

    def __init__(self, host: Host, task: ToolTask, tool: Tool, deadline: Deadline, pulse: Pulse) -> None:
        self._host = host
        self._task = task
        self._tool = tool
        self._deadline = deadline
        self._pulse = pulse
        self._key = ledger_key(task.message_id, task.tool_call_id) if host.use_ledger else None
        self._attributes = {"node": task.node, "tool": tool.name}
        self._metadata = call_metadata(task.tool_call_id, tool.name, {})
        self._graph = host.graph(task.run.graph)
        self._info = activity.info()
        self._transaction = contextlib.AsyncExitStack()
        self._shared: LedgerTransaction | None = None
        self._scope = Scope(task.node, "", {}, task.tool_call_id)

    async def run(self) -> ToolOutcome:
        """Replay the call's recorded result, or run the tool and record what it returned."""
        call, envelope = await self._load()
        if envelope is not None:
            if self._well_formed(envelope):
                return await self._replayed()
            logger.warning("ledger row %s is not well formed; it counts as no record", self._key)
        self._host.metrics.ledger_misses.add(1, self._attributes)
        arguments, problem = _arguments(call)
        self._metadata = call_metadata(self._task.tool_call_id, self._tool.name, arguments)
        bound: dict[str, Any] = {}
        if problem is None:
            try:
                bound = self._tool.schema.bind(arguments)
            except ArgumentError as exc:
                problem = str(exc)
        if problem is not None:
            text = f"Tool {self._tool.name!r} was not run, its arguments are wrong: {problem}"
            return await self._settle(self._failure(text, "ARGUMENTS"), status="failed")
        try:
            return await self._answered(bound, arguments)
        except GraphInterrupt as pause:
            return await self._paused(pause.request)

    async def _answered(self, bound: dict[str, Any], arguments: dict[str, Any]) -> ToolOutcome:
        """Get past whatever a person or a client has to say first, then run."""
        await self._open_scope()
        if self._tool.remote:
            answer = self._scope.ask("remote", {"tool": self._tool.name, "arguments": arguments}, reason=REMOTE_REASON)
            return await self._settle(await self._finished(answer, None, None))
        if self._tool.needs_approval(arguments):
            decision = ask_approval(self._scope, self._tool.name, arguments, self._task.tool_call_id)
            self._metadata["approval"] = decision.audit()
            if not decision.approved:
                return await self._settle(self._failure(decision.refusal(self._tool.name), "REJECTED"))
            if decision.arguments is not None:
                self._metadata["function_argument"] = decision.arguments
                try:
                    bound = self._tool.schema.bind(decision.arguments)
                except ArgumentError as exc:
                    text = f"Tool {self._tool.name!r} was not run, the approved arguments are wrong: {exc}"
                    return await self._settle(self._failure(text, "ARGUMENTS"))
        async with Claims(self._host, self._task, self._tool, self._key) as claims:
            if claims.recorded:
                return await self._replayed()
            if claims.doubt is not None:
                if self._tool.in_doubt == "fail":
                    return await self._settle(claims.doubtful_result(self._task), status="in_doubt")
                ruling = ask_about_doubt(self._scope, self._tool.name, arguments, claims.doubt)
                self._metadata["in_doubt"] = ruling.audit()
                if ruling.outcome == "happened":
                    return await self._settle(await self._finished(ruling.result, None, None))
                if ruling.outcome == "failed":
                    return await self._settle(claims.doubtful_result(self._task), status="in_doubt")
                await claims.take_over()
            return await self._execute(bound, claims)

    async def _open_scope(self) -> None:
        answers: dict[str, Any] = {}
        if self._task.resumed:
            snapshot = await self._snapshot()
            answers = answers_of(snapshot.decode(self._graph.state_class))
        identity = f"{self._task.run.thread_id}\0{self._task.message_id}:{self._task.tool_call_id}"
        self._scope = Scope(self._task.node, identity, answers, self._task.tool_call_id)

    async def _paused(self, request: InterruptRequest) -> ToolOutcome:
        """Keep what is asked; the workflow shows it, and calls again when it is answered."""
        await self._host.store.put_interrupt(self._task.run.thread_id, request.id, request.model_dump(mode="json"))
        return ToolOutcome(status="interrupted", interrupt=request.ref)

    async def _execute(self, bound: dict[str, Any], claims: Claims) -> ToolOutcome:
        host, tool = self._host, self._tool
        snapshot, state = await self._state()
        before = state.model_copy(deep=True) if state is not None else None
        context = self._context()
        injected = {
            "state": state,
            "config": self._config(snapshot),
            "tool_call_id": self._task.tool_call_id,
            "context": context,
        }
        kwargs = {**bound, **{name: injected[kind] for name, kind in tool.schema.injected.items()}}
        host.metrics.tool_calls.add(1, self._attributes)
        started = time.monotonic()
        try:
            await host.faults.reach("tool.called", tool.name)
            async with self._transaction:
                with interrupt_scope(self._scope):
                    value = await run_code(
                        tool.function,
                        kwargs,
                        name=f"tool {tool.name!r}",
                        is_async=tool.schema.is_async,
                        context=context,
                        deadline=self._deadline,
                        grace=host.cancel_grace,
                        interruptible=tool.interruptible,
                    )
                await host.faults.reach("tool.returned", tool.name)
                result = await self._finished(value, before, state)
                if self._shared is not None:  # the record commits with the tool's own statements
                    return await self._settle(result)
            return await self._settle(result)
        except GraphInterrupt:
            await claims.release()  # it is known not to have finished
            raise
        except _LostRace:
            return await self._replayed()
        except DeadlineExceeded as exc:
            return await self._settle(self._timed_out(exc), status="timeout")
        except (CutShort, StoreUnavailable):
            raise
        except Exception as exc:
            return await self._raised(exc, claims)
        finally:
            host.metrics.tool_duration.record(time.monotonic() - started, self._attributes)

    async def _load(self) -> tuple[dict[str, Any], Json | None]:
        """The call as the model wrote it, and its ledger row."""
        task, envelope, calls = self._task, None, None
        try:
            calls, envelope = await self._host.store.load_call(task.run.thread_id, task.message_id, self._key or "")
        except RetryableError:
            raise  # no database, no arguments: the attempt is made again when it is back
        except TenxGraphError as exc:
            logger.warning("no ledger for %s, which counts as no record: %s", self._key, exc)
            self._host.metrics.ledger_read_failures.add(1, self._attributes)
        call = _find(calls, task.tool_call_id)
        if call is None:  # the message is in the state in any case
            snapshot = await self._snapshot()
            context = snapshot.decode(self._graph.state_class).context
            asked = next((m.tools_calls for m in context if m.message_id == task.message_id), None)
            call = _find(asked, task.tool_call_id)
        if call is None:
            raise InputError(
                f"message {task.message_id!r} of thread {task.run.thread_id!r} has no call {task.tool_call_id!r}; "
                "was the thread edited while it ran?"
            )
        return call, envelope if self._key is not None else None

    async def _snapshot(self) -> Snapshot:
        return await self._host.states.head(self._task.run) or Snapshot()

    async def _state(self) -> tuple[Snapshot, AgentState | None]:
        """The call's own copy of the state, if the tool asks for it."""
        if not self._tool.injects & {"state", "config"}:
            return Snapshot(), None
        snapshot = await self._snapshot()
        if "state" not in self._tool.injects:
            return snapshot, None
        return snapshot, snapshot.decode(self._graph.state_class)

    def _config(self, snapshot: Snapshot) -> dict[str, Any]:
        run = self._task.run
        return {**snapshot.config, "thread_id": run.thread_id, "user_id": run.user_id, "run_id": run.run_id}

    def _context(self) -> ToolContext:
        task = self._task
        return ToolContext(
            thread_id=task.run.thread_id,
            user_id=task.run.user_id,
            run_id=task.run.run_id,
            node=task.node,
            attempt=self._info.attempt,
            last_heartbeat=self._info.heartbeat_details,
            _beat=self._pulse.report,
            tool=self._tool.name,
            message_id=task.message_id,
            tool_call_id=task.tool_call_id,
            idempotency_key=idempotency_key(task.run.thread_id, task.message_id, task.tool_call_id),
            _transaction=self._open_transaction,
        )

    @contextlib.asynccontextmanager
    async def _open_transaction(self) -> AsyncIterator[Any]:
        """The transaction that the record will join; it commits after the tool has returned."""
        if self._key is None:
            raise InputError(f"tool {self._tool.name!r}: transaction() needs the ledger, which is switched off")
        if self._shared is None:
            self._shared = await self._transaction.enter_async_context(self._host.store.transaction())
        yield self._shared.connection

    async def _finished(self, value: Any, before: AgentState | None, state: AgentState | None) -> CallResult:
        """What the tool returned and what it changed. A value that cannot be stored is told to the model."""
        try:
            changes = await self._changes(value, before, state)
            message = result_message(value, tool_call_id=self._task.tool_call_id, metadata=self._metadata)
            goto = value.goto if isinstance(value, Command) else None
            result = CallResult(message=message, state=changes, goto=goto)
            _ = result.envelope  # now, while it can still be told to the model
        except (EncodingError, ValidationError, KeyError, TypeError) as exc:
            text = f"Tool {self._tool.name!r} ran, but what it returned cannot be stored: {describe_error(exc)}"
            logger.error("%s (%s)", text, self._key)
            return self._failure(text, "RESULT")
        return result

    async def _changes(self, value: Any, before: AgentState | None, state: AgentState | None) -> dict[str, Any]:
        set_fields = value.state if isinstance(value, ToolResult) else {}
        updates = value.update if isinstance(value, Command) else None
        if (set_fields or updates) and state is None:
            state = (await self._snapshot()).decode(self._graph.state_class)
            before = state.model_copy(deep=True)
        if state is None or before is None:
            return {}
        state.set_fields(set_fields)
        if updates:
            state.apply(updates)
        return changed_fields(before, state)

    def _failure(self, text: str, code: str) -> CallResult:
        return failure(text, tool_call_id=self._task.tool_call_id, metadata=self._metadata, code=code)

    def _timed_out(self, exc: DeadlineExceeded) -> CallResult:
        if exc.of_step:
            raise NodeTimeoutError(
                f"node {self._task.node!r} exceeded its node_timeout while tool {self._tool.name!r} was running; "
                "raise it, or give the tool a shorter timeout"
            )
        self._host.metrics.tool_timeouts.add(1, self._attributes)
        error = NodeTimeoutError(
            f"tool {self._tool.name!r} exceeded its tool_timeout of {exc.seconds:g} s and was cancelled; it may "
            "or may not have taken effect",
            code="NODE_TIMEOUT_002",
        )
        logger.warning("%s (%s)", error, self._key)
        return self._failure(str(error), error.code)

    async def _raised(self, exc: Exception, claims: Claims) -> ToolOutcome:
        self._shared = None  # its transaction was rolled back
        self._host.metrics.tool_errors.add(1, self._attributes)
        error = f"Tool {self._tool.name!r} failed: {describe_error(exc)}"
        logger.warning("%s (%s)", error, self._key)
        delay = self._tool.retry.delay(self._info.attempt, exc) if self._tool.retry else None
        if delay is None:
            return await self._settle(self._failure(error, "TOOL_ERROR"))
        await claims.release()
        raise ApplicationError(error, type=TOOL_ERROR, next_retry_delay=timedelta(seconds=delay)) from exc

    async def _settle(self, result: CallResult, *, status: str = "") -> ToolOutcome:
        """Record the result at once; whoever recorded first is right."""
        if self._key is None:
            await self._host.faults.reach("tool.recorded", self._tool.name)
            return self._outcome(result, unrecorded=result.envelope)
        entry = LedgerEntry(
            ledger_key=self._key,
            envelope=result.envelope,
            tool=self._tool.name,
            status=status or ("failed" if result.failed else "finished"),
            attempt=self._info.attempt,
            worker=self._host.worker,
        )
        thread_id = self._task.run.thread_id
        if self._shared is not None and not status:
            if await self._shared.record(thread_id, entry) is not None:
                raise _LostRace  # another attempt's effect is committed: ours rolls back
            return self._outcome(result)
        try:
            first = await self._host.store.record(thread_id, entry)
        except TenxGraphError as exc:
            self._host.metrics.ledger_unrecorded.add(1, self._attributes)
            logger.error(
                "tool %s (call %s of thread %s) COMPLETED but could not be recorded: a replay may run it again: %s",
                self._tool.name,
                self._key,
                thread_id,
                exc,
            )
            return self._unrecorded(result)
        if first is not None:
            self._host.metrics.ledger_lost_races.add(1, self._attributes)
            logger.warning("a result of call %s was there already; this later one is dropped", self._key)
            if self._well_formed(first):
                return await self._replayed()
        await self._host.faults.reach("tool.recorded", self._tool.name)
        return self._outcome(result)

    def _unrecorded(self, result: CallResult) -> ToolOutcome:
        if len(dump_json(result.envelope)) > MAX_CARRIED_BYTES:
            text = (
                f"Tool {self._tool.name!r} ran, but its result could not be recorded and is too large to pass on "
                "without the ledger."
            )
            result = self._failure(text, "UNRECORDED")
        return self._outcome(result, unrecorded=result.envelope)

    def _outcome(self, result: CallResult, *, unrecorded: Json | None = None) -> ToolOutcome:
        return ToolOutcome(
            status="failed" if result.failed else "ran",
            error=result.message.text()[:ERROR_CHARS] if result.failed else None,
            unrecorded=unrecorded,
        )

    async def _replayed(self) -> ToolOutcome:
        logger.info("call %s of tool %s was recorded before; replaying its result", self._key, self._tool.name)
        self._host.metrics.ledger_hits.add(1, self._attributes)
        with contextlib.suppress(TenxGraphError):  # a statistic; the replay itself does not depend on it
            await self._host.store.count_replay(self._task.run.thread_id, self._key or "")
        return ToolOutcome(status="replayed")

    def _well_formed(self, envelope: Json) -> bool:
        found = from_envelope(envelope, tool_call_id=self._task.tool_call_id, metadata=self._metadata)
        return found is not None


def _find(calls: Json, tool_call_id: str) -> dict[str, Any] | None:
    return next((call for call in calls or () if call.get("id") == tool_call_id), None)


def _arguments(call: dict[str, Any]) -> tuple[Any, str | None]:
    """The call's arguments, and what is wrong with them if they are no JSON object."""
    function = call.get("function")
    raw = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(raw, str) and raw.strip():
        try:
            raw = json.loads(raw)
        except ValueError as exc:
            return {}, f"not valid JSON: {exc}"
    arguments = {} if raw is None or raw == "" else raw
    if not isinstance(arguments, dict):
        return {}, f"a JSON object is expected, not {json.dumps(arguments)[:100]}"
    return arguments, None
