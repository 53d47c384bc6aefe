"""One attempt at one tool call under the ledger: look up, run, record at once."""

from __future__ import annotations

import json
import logging
import time
from datetime import timedelta
from typing import Any

from temporalio.exceptions import ApplicationError

from ..runtime.command import Command
from ..runtime.errors import (
    EncodingError,
    NodeTimeoutError,
    StoreUnavailable,
    WorkerExhausted,
)
from ..runtime.interrupt import GraphInterrupt, InterruptRequest, Scope, answers_of, interrupt_scope
from ..runtime.state import AgentState
from ..runtime.storage.snapshot import Snapshot
from ..runtime.telemetry.tracing import content
from ..runtime.tools.approval import ask_about_doubt, ask_approval
from ..runtime.tools.context import ToolContext
from ..runtime.tools.identity import idempotency_key
from ..runtime.tools.merge import changed_fields, requested_changes
from ..runtime.tools.result import (
    CallResult,
    ToolResult,
    call_metadata,
    describe_error,
    result_message,
)
from ..runtime.tools.schema import ArgumentError
from ..runtime.tools.tool import Tool
from ..runtime.wire import TOOL_ERROR, ToolOutcome, ToolTask
from .attempt import CutShort, Deadline, DeadlineExceeded, Pulse, run_code
from .call_ledger import LostRace, RecordedCall, StateLost
from .claims import Claims
from .host import Host

logger = logging.getLogger(__name__)

REMOTE_REASON = "remote_tool_call"


class ToolCall(RecordedCall):
    """One attempt at one call to ``tool``."""

    def __init__(self, host: Host, task: ToolTask, tool: Tool, deadline: Deadline, pulse: Pulse) -> None:
        super().__init__(host, task, tool)
        self._deadline = deadline
        self._pulse = pulse
        self._scope = Scope(task.node, "", {}, task.tool_call_id)

    async def run(self) -> ToolOutcome:
        """Replay the call's recorded result, or run the tool and record what it returned."""
        try:
            call, envelope = await self._load()
        except StateLost:
            return ToolOutcome(status="failed", error="not run: the message that asked for it was lost")
        if envelope is not None:
            if self._well_formed(envelope):
                return await self._replayed()
            logger.warning("ledger row %s is not well formed; it counts as no record", self._key)
        self._host.metrics.ledger_misses.add(1, self._attributes)
        arguments, problem = _arguments(call)
        content("gen_ai.tool.call.arguments", lambda: json.dumps(arguments))
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
            return await self._settle(self._finished(answer, None, None))
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
                    return await self._settle(self._finished(ruling.result, None, None))
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
        self._host.metrics.interrupts_opened.add(1, {"node": self._task.node})
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
                result = self._finished(value, before, state)
                if self._shared is not None:  # the record commits with the tool's own statements
                    return await self._settle(result)
            return await self._settle(result)
        except (GraphInterrupt, WorkerExhausted):
            await claims.release()  # it is known not to have finished
            raise
        except LostRace:
            return await self._replayed()
        except DeadlineExceeded as exc:
            return await self._settle(self._timed_out(exc), status="timeout")
        except (CutShort, StoreUnavailable):
            raise
        except Exception as exc:
            return await self._raised(exc, claims)
        finally:
            host.metrics.tool_duration.record(time.monotonic() - started, self._attributes)

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

    def _finished(self, value: Any, before: AgentState | None, state: AgentState | None) -> CallResult:
        """What the tool returned and what it changed. A value that cannot be stored is told to the model."""
        try:
            changes = self._changes(value, before, state)
            message = result_message(value, tool_call_id=self._task.tool_call_id, metadata=self._metadata)
            goto = value.goto if isinstance(value, Command) else None
            result = CallResult(message=message, state=changes, goto=goto)
            _ = result.envelope  # now, while it can still be told to the model
        except (EncodingError, ValueError, KeyError, TypeError) as exc:
            text = f"Tool {self._tool.name!r} ran, but what it returned cannot be stored: {describe_error(exc)}"
            logger.error("%s (%s)", text, self._key)
            return self._failure(text, "RESULT")
        return result

    def _changes(self, value: Any, before: AgentState | None, state: AgentState | None) -> dict[str, Any]:
        set_fields = value.state if isinstance(value, ToolResult) else {}
        updates = (value.update or {}) if isinstance(value, Command) else {}
        if state is None or before is None:  # nothing was copied, so there is nothing to compare with
            return requested_changes(self._graph.state_class, set_fields, updates)
        state.set_fields(set_fields)
        state.apply(updates)
        return changed_fields(before, state)

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
