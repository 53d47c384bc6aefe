"""The tool ledger in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

from ..errors import StoreError
from ..state.encoding import dump_json, load_json
from ._memory_data import IntentRow, MemoryData, ResultRow, ThreadRow
from ._values import check_ids, no_thread
from .contract import (
    CallRecord,
    Claim,
    Claimed,
    Held,
    InDoubt,
    Intent,
    Json,
    LedgerEntry,
    LedgerTransaction,
    Recorded,
)


class MemoryLedger:
    """``ToolLedger`` in memory. Each method first gives way to other tasks, as a database would."""

    _data: MemoryData

    async def lookup(self, thread_id: str, ledger_keys: Sequence[str]) -> dict[str, Json]:
        """See ``ToolLedger.lookup``."""
        await asyncio.sleep(0)
        thread = self._data.threads.get(thread_id)
        rows = thread.results if thread else {}
        return {key: load_json(rows[key].envelope) for key in ledger_keys if key in rows}

    async def record(self, thread_id: str, entry: LedgerEntry) -> Json | None:
        """See ``ToolLedger.record``."""
        await asyncio.sleep(0)
        check_ids(ledger_key=entry.ledger_key)
        row = ResultRow(entry, dump_json(entry.envelope), self._data.clock.now())
        first = self._thread(thread_id).results.setdefault(entry.ledger_key, row)
        return None if first is row else load_json(first.envelope)

    async def load_call(self, thread_id: str, message_id: str, ledger_key: str) -> tuple[Json, Json | None]:
        """See ``ToolLedger.load_call``."""
        await asyncio.sleep(0)
        thread = self._data.threads.get(thread_id)
        if thread is None:
            return None, None
        message, result = thread.messages.get(message_id), thread.results.get(ledger_key)
        return (
            load_json(message)["tool_calls"] if message else None,
            load_json(result.envelope) if result else None,
        )

    async def claim(self, thread_id: str, intent: Intent) -> Claim:
        """See ``ToolLedger.claim``."""
        return await self._claim(thread_id, intent, replace_doubtful=False)

    async def take_over(self, thread_id: str, intent: Intent) -> Claim:
        """See ``ToolLedger.take_over``."""
        return await self._claim(thread_id, intent, replace_doubtful=True)

    async def _claim(self, thread_id: str, intent: Intent, *, replace_doubtful: bool) -> Claim:
        await asyncio.sleep(0)
        check_ids(ledger_key=intent.ledger_key)
        thread = self._thread(thread_id)
        recorded = thread.results.get(intent.ledger_key)
        if recorded is not None:
            return Recorded(load_json(recorded.envelope))
        now = self._data.clock.now()
        holder = thread.intents.get(intent.ledger_key)
        if holder is not None and holder.owner != intent.owner:
            if holder.lease_until > now:
                return Held(holder.worker, holder.attempt, holder.lease_until - now)
            if not replace_doubtful:
                return InDoubt(holder.worker, holder.attempt, holder.started_at)
        thread.intents[intent.ledger_key] = IntentRow(
            owner=intent.owner,
            tool=intent.tool,
            attempt=intent.attempt,
            worker=intent.worker,
            lease_until=now + intent.lease,
            started_at=now,
        )
        return Claimed()

    async def renew(self, thread_id: str, ledger_key: str, owner: str, lease: timedelta) -> bool:
        """See ``ToolLedger.renew``."""
        await asyncio.sleep(0)
        thread = self._data.threads.get(thread_id)
        holder = thread.intents.get(ledger_key) if thread else None
        if thread is None or holder is None or holder.owner != owner:
            return False
        thread.intents[ledger_key] = IntentRow(
            owner=owner,
            tool=holder.tool,
            attempt=holder.attempt,
            worker=holder.worker,
            lease_until=self._data.clock.now() + lease,
            started_at=holder.started_at,
        )
        return True

    async def release(self, thread_id: str, ledger_key: str, owner: str) -> None:
        """See ``ToolLedger.release``."""
        await asyncio.sleep(0)
        thread = self._data.threads.get(thread_id)
        if thread and ledger_key in thread.intents and thread.intents[ledger_key].owner == owner:
            del thread.intents[ledger_key]

    def transaction(self) -> AbstractAsyncContextManager[LedgerTransaction]:
        """See ``ToolLedger.transaction``: there is none here."""
        raise StoreError(
            "the memory store has no database whose transaction a tool could share; "
            "set TENXGRAPH_DATABASE_URL to postgresql://... or sqlite:///..."
        )

    async def calls(self, thread_id: str) -> list[CallRecord]:
        """See ``ToolLedger.calls``."""
        await asyncio.sleep(0)
        thread = self._data.threads.get(thread_id)
        if thread is None:
            return []
        now = self._data.clock.now()
        records = [
            CallRecord(
                ledger_key=key,
                tool=row.entry.tool,
                status=row.entry.status,
                attempt=row.entry.attempt,
                worker=row.entry.worker,
                replays=row.replays,
                at=row.at,
                envelope=load_json(row.envelope),
            )
            for key, row in thread.results.items()
        ] + [
            CallRecord(
                ledger_key=key,
                tool=intent.tool,
                status="running" if intent.lease_until > now else "in_doubt",
                attempt=intent.attempt,
                worker=intent.worker,
                replays=0,
                at=intent.started_at,
                envelope=None,
            )
            for key, intent in thread.intents.items()
            if key not in thread.results
        ]
        return sorted(records, key=lambda record: (record.at, record.ledger_key))

    async def put_interrupt(self, thread_id: str, interrupt_id: str, request: Json) -> None:
        """See ``ToolLedger.put_interrupt``."""
        await asyncio.sleep(0)
        self._thread(thread_id).interrupts.setdefault(interrupt_id, dump_json(request))

    async def load_interrupts(self, thread_id: str, interrupt_ids: Sequence[str]) -> dict[str, Json]:
        """See ``ToolLedger.load_interrupts``."""
        await asyncio.sleep(0)
        thread = self._data.threads.get(thread_id)
        requests = thread.interrupts if thread else {}
        return {key: load_json(requests[key]) for key in interrupt_ids if key in requests}

    async def count_replay(self, thread_id: str, ledger_key: str) -> None:
        """See ``ToolLedger.count_replay``."""
        await asyncio.sleep(0)
        thread = self._data.threads.get(thread_id)
        if thread and ledger_key in thread.results:
            thread.results[ledger_key].replays += 1

    def _thread(self, thread_id: str) -> ThreadRow:
        thread = self._data.threads.get(thread_id)
        if thread is None:
            raise no_thread(thread_id)
        return thread
