"""One tool call's dealings with the ledger: what is known of it, and recording how it ended."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from opentelemetry import trace
from temporalio import activity

from ..runtime.errors import InputError, RetryableError, TenxGraphError
from ..runtime.limits import RunConfig
from ..runtime.state.encoding import dump_json
from ..runtime.storage.contract import Json, LedgerEntry, LedgerTransaction
from ..runtime.storage.snapshot import Snapshot
from ..runtime.telemetry.tracing import content
from ..runtime.tools.identity import ledger_key
from ..runtime.tools.result import CallResult, call_metadata, failure, from_envelope
from ..runtime.tools.tool import Tool
from ..runtime.wire import ToolOutcome, ToolTask
from .host import Host

logger = logging.getLogger(__name__)

ERROR_CHARS = 500
"""Longest error text in a history."""
MAX_CARRIED_BYTES = 1024 * 1024
"""Largest result that crosses Temporal when the ledger could not take it."""


class StateLost(Exception):
    """The step's message was not saved, and went with the cache: the commit takes the run back to what was saved."""


class LostRace(Exception):
    """Another attempt recorded the call while this one was in its transaction."""


class RecordedCall:
    """One attempt at one call to ``tool``, as far as the ledger is concerned."""

    def __init__(self, host: Host, task: ToolTask, tool: Tool) -> None:
        self._host = host
        self._task = task
        self._tool = tool
        self._key = ledger_key(task.message_id, task.tool_call_id) if host.use_ledger else None
        self._attributes = {"node": task.node, "tool": tool.name}
        self._metadata = call_metadata(task.tool_call_id, tool.name, {})
        self._graph = host.graph(task.run.graph)
        self._info = activity.info()
        self._transaction = contextlib.AsyncExitStack()
        self._shared: LedgerTransaction | None = None
        """The transaction that the tool asked for, and that its record joins."""

    @property
    def task(self) -> ToolTask:
        """The call."""
        return self._task

    @property
    def tool(self) -> Tool:
        """The tool that it is to."""
        return self._tool

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
        if call is None:  # not readable, or not saved yet; the message is in the state in any case
            snapshot = await self._snapshot()
            context = snapshot.decode(self._graph.state_class).context
            asked = next((m.tools_calls for m in context if m.message_id == task.message_id), None)
            call = _find(asked, task.tool_call_id)
        if call is None:
            if not RunConfig.of(snapshot.config).durable:
                raise StateLost
            raise InputError(
                f"message {task.message_id!r} of thread {task.run.thread_id!r} has no call {task.tool_call_id!r}; "
                "was the thread edited while it ran?"
            )
        return call, envelope if self._key is not None else None

    async def _snapshot(self) -> Snapshot:
        return await self._host.states.head(self._task.run) or Snapshot()

    @contextlib.asynccontextmanager
    async def _open_transaction(self) -> AsyncIterator[Any]:
        """The transaction that the record will join; it commits after the tool has returned."""
        if self._key is None:
            raise InputError(f"tool {self._tool.name!r}: transaction() needs the ledger, which is switched off")
        if self._shared is None:
            self._shared = await self._transaction.enter_async_context(self._host.store.transaction())
        yield self._shared.connection

    async def _settle(self, result: CallResult, *, status: str = "") -> ToolOutcome:
        """Record the result at once; whoever recorded first is right."""
        content("gen_ai.tool.call.result", result.message.text)
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
                raise LostRace  # another attempt's effect is committed: ours rolls back
            return self._outcome(result)
        try:
            first = await self._host.store.record(thread_id, entry)
        except Exception as exc:  # whatever it is, it is not the tool's
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

    def _failure(self, text: str, code: str) -> CallResult:
        trace.get_current_span().set_attribute("error.type", code)
        return failure(text, tool_call_id=self._task.tool_call_id, metadata=self._metadata, code=code)


def _find(calls: Json, tool_call_id: str) -> dict[str, Any] | None:
    return next((call for call in calls or () if call.get("id") == tool_call_id), None)
