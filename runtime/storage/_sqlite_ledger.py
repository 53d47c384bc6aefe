"""The tool ledger in SQLite: records of finished calls, and claims of running ones."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import aiosqlite

from ..errors import StoreError
from ..state.encoding import dump_json, load_json
from ._sqlite_database import SqliteDatabase
from ._sqlite_schema import from_text, to_text
from ._values import Clock, check_ids, no_thread
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

_RECORD = """
INSERT INTO tool_executions (thread_id, tool_call_id, result, tool, status, attempt, worker, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1
"""

_RECORDED = "SELECT result FROM tool_executions WHERE thread_id = ? AND tool_call_id = ?"

_LOAD_CALL = """
SELECT (SELECT tool_calls FROM messages WHERE message_id = ?2 AND thread_id = ?1),
    (SELECT result FROM tool_executions WHERE thread_id = ?1 AND tool_call_id = ?3)
"""

_CLAIM = """
INSERT OR REPLACE INTO tool_intents (thread_id, tool_call_id, owner, tool, attempt, worker, lease_until, started_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""

_CALLS = """
SELECT tool_call_id, coalesce(tool, '') AS tool, coalesce(status, 'finished') AS status,
    coalesce(attempt, 1) AS attempt, coalesce(worker, '') AS worker, coalesce(replays, 0) AS replays,
    created_at AS at, result
FROM tool_executions WHERE thread_id = ?1
UNION ALL
SELECT tool_call_id, tool, CASE WHEN lease_until > ?2 THEN 'running' ELSE 'in_doubt' END, attempt,
    worker, 0, started_at, NULL
FROM tool_intents i WHERE thread_id = ?1 AND NOT EXISTS (
    SELECT 1 FROM tool_executions e WHERE e.thread_id = i.thread_id AND e.tool_call_id = i.tool_call_id)
ORDER BY at, tool_call_id
"""


class SqliteLedger:
    """``ToolLedger`` on SQLite."""

    _db: SqliteDatabase

    async def lookup(self, thread_id: str, ledger_keys: Sequence[str]) -> dict[str, Json]:
        """See ``ToolLedger.lookup``."""
        rows = await self._db.read(
            "SELECT tool_call_id, result FROM tool_executions "
            "WHERE thread_id = ? AND tool_call_id IN (SELECT value FROM json_each(?))",
            (thread_id, dump_json(list(ledger_keys)).decode()),
        )
        asked = set(ledger_keys)  # unstorable characters were replaced on the way: the row of another key is no hit
        return {row["tool_call_id"]: load_json(row["result"]) for row in rows if row["tool_call_id"] in asked}

    async def record(self, thread_id: str, entry: LedgerEntry) -> Json | None:
        """See ``ToolLedger.record``."""
        return await self._db.write(lambda connection: _record(connection, thread_id, entry, self._db.clock))

    async def load_call(self, thread_id: str, message_id: str, ledger_key: str) -> tuple[Json, Json | None]:
        """See ``ToolLedger.load_call``."""
        ((calls, result),) = await self._db.read(_LOAD_CALL, (thread_id, message_id, ledger_key))
        return (load_json(calls) if calls else None, load_json(result) if result else None)

    async def claim(self, thread_id: str, intent: Intent) -> Claim:
        """See ``ToolLedger.claim``."""
        return await self._claim(thread_id, intent, replace_doubtful=False)

    async def take_over(self, thread_id: str, intent: Intent) -> Claim:
        """See ``ToolLedger.take_over``."""
        return await self._claim(thread_id, intent, replace_doubtful=True)

    async def _claim(self, thread_id: str, intent: Intent, *, replace_doubtful: bool) -> Claim:
        check_ids(ledger_key=intent.ledger_key)

        async def attempt(connection: aiosqlite.Connection) -> Claim:
            for row in await connection.execute_fetchall(_RECORDED, (thread_id, intent.ledger_key)):
                return Recorded(load_json(row["result"]))
            now = self._db.clock.now()
            for holder in await connection.execute_fetchall(
                "SELECT * FROM tool_intents WHERE thread_id = ? AND tool_call_id = ? AND owner <> ?",
                (thread_id, intent.ledger_key, intent.owner),
            ):
                remaining = from_text(holder["lease_until"]) - now
                if remaining > timedelta():
                    return Held(holder["worker"], holder["attempt"], remaining)
                if not replace_doubtful:
                    return InDoubt(holder["worker"], holder["attempt"], from_text(holder["started_at"]))
            row_of_ours = (
                thread_id,
                intent.ledger_key,
                intent.owner,
                intent.tool,
                intent.attempt,
                intent.worker,
                to_text(now + intent.lease),
                to_text(now),
            )
            await _for_thread(connection, thread_id, _CLAIM, row_of_ours)
            return Claimed()

        return await self._db.write(attempt)

    async def renew(self, thread_id: str, ledger_key: str, owner: str, lease: timedelta) -> bool:
        """See ``ToolLedger.renew``."""
        rows = await self._db.write(
            lambda connection: connection.execute_fetchall(
                "UPDATE tool_intents SET lease_until = ? WHERE thread_id = ? AND tool_call_id = ? AND owner = ? "
                "RETURNING 1",
                (to_text(self._db.clock.now() + lease), thread_id, ledger_key, owner),
            )
        )
        return bool(rows)

    async def release(self, thread_id: str, ledger_key: str, owner: str) -> None:
        """See ``ToolLedger.release``."""
        await self._db.write(
            lambda connection: connection.execute_fetchall(
                "DELETE FROM tool_intents WHERE thread_id = ? AND tool_call_id = ? AND owner = ?",
                (thread_id, ledger_key, owner),
            )
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[LedgerTransaction]:
        """See ``ToolLedger.transaction``. SQLite has one writer: until it ends, all others wait."""
        async with self._db.transaction() as connection:
            yield _SqliteLedgerTransaction(connection, self._db.clock)

    async def calls(self, thread_id: str) -> list[CallRecord]:
        """See ``ToolLedger.calls``."""
        rows = await self._db.read(_CALLS, (thread_id, to_text(self._db.clock.now())))
        return [
            CallRecord(
                ledger_key=row["tool_call_id"],
                tool=row["tool"],
                status=row["status"],
                attempt=row["attempt"],
                worker=row["worker"],
                replays=row["replays"],
                at=from_text(row["at"]),
                envelope=load_json(row["result"]) if row["result"] else None,
            )
            for row in rows
        ]

    async def put_interrupt(self, thread_id: str, interrupt_id: str, request: Json) -> None:
        """See ``ToolLedger.put_interrupt``."""
        statement = (
            "INSERT INTO tool_interrupts (thread_id, interrupt_id, request, created_at) VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING"
        )
        row = (thread_id, interrupt_id, dump_json(request).decode(), to_text(self._db.clock.now()))
        await self._db.write(lambda connection: _for_thread(connection, thread_id, statement, row))

    async def load_interrupts(self, thread_id: str, interrupt_ids: Sequence[str]) -> dict[str, Json]:
        """See ``ToolLedger.load_interrupts``."""
        rows = await self._db.read(
            "SELECT interrupt_id, request FROM tool_interrupts "
            "WHERE thread_id = ? AND interrupt_id IN (SELECT value FROM json_each(?))",
            (thread_id, dump_json(list(interrupt_ids)).decode()),
        )
        return {row["interrupt_id"]: load_json(row["request"]) for row in rows}

    async def count_replay(self, thread_id: str, ledger_key: str) -> None:
        """See ``ToolLedger.count_replay``."""
        await self._db.write(
            lambda connection: connection.execute_fetchall(
                "UPDATE tool_executions SET replays = coalesce(replays, 0) + 1 "
                "WHERE thread_id = ? AND tool_call_id = ?",
                (thread_id, ledger_key),
            )
        )


class _SqliteLedgerTransaction:
    def __init__(self, connection: aiosqlite.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    @property
    def connection(self) -> Any:
        return self._connection

    async def record(self, thread_id: str, entry: LedgerEntry) -> Json | None:
        return await _record(self._connection, thread_id, entry, self._clock)


async def insert_result(connection: aiosqlite.Connection, thread_id: str, entry: LedgerEntry, now: str) -> bool:
    """Insert a record where there is none; whether it was written."""
    envelope = dump_json(entry.envelope).decode()
    row = (thread_id, entry.ledger_key, envelope, entry.tool, entry.status, entry.attempt, entry.worker, now)
    return bool(await _for_thread(connection, thread_id, _RECORD, row))


async def _record(connection: aiosqlite.Connection, thread_id: str, entry: LedgerEntry, clock: Clock) -> Json | None:
    check_ids(ledger_key=entry.ledger_key)
    if await insert_result(connection, thread_id, entry, to_text(clock.now())):
        return None
    rows = await connection.execute_fetchall(_RECORDED, (thread_id, entry.ledger_key))
    (row,) = rows
    return load_json(row["result"])


async def _for_thread(
    connection: aiosqlite.Connection, thread_id: str, statement: str, row: tuple[Any, ...]
) -> list[sqlite3.Row]:
    """Write a row that belongs to a thread."""
    try:
        return list(await connection.execute_fetchall(statement, row))
    except sqlite3.IntegrityError as exc:
        if exc.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            raise no_thread(thread_id) from exc
        raise StoreError(f"SQLite refused the row: {exc}") from exc
