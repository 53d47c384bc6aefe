"""The tool ledger in Postgres: records of finished calls, and claims of running ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg

from ..errors import StoreError
from ..state.encoding import dump_json
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
from .pg_database import PgDatabase, any_json

_RECORD = """
WITH written AS (
    INSERT INTO {s}.tool_executions (thread_id, tool_call_id, result, tool, status, attempt, worker)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT EXISTS (SELECT FROM written)
"""

_RECORDED = "SELECT result FROM {s}.tool_executions WHERE thread_id = $1 AND tool_call_id = $2"

_LOAD_CALL = """
SELECT m.tool_calls, e.result
FROM (SELECT 1) AS one
LEFT JOIN {s}.messages m ON m.message_id = $2 AND m.thread_id = $1
LEFT JOIN {s}.tool_executions e ON e.thread_id = $1 AND e.tool_call_id = $3
"""

# The claim is the insert: it is refused where a record exists, and kept where the same attempt asks again.
_CLAIM = """
WITH done AS (
    SELECT result FROM {s}.tool_executions WHERE thread_id = $1 AND tool_call_id = $2
), claimed AS (
    INSERT INTO {s}.tool_intents AS i (thread_id, tool_call_id, owner, lease_until, tool, attempt, worker)
    SELECT $1, $2, $3, clock_timestamp() + $4::interval, $5, $6, $7 WHERE NOT EXISTS (SELECT FROM done)
    ON CONFLICT (thread_id, tool_call_id) DO UPDATE
        SET owner = excluded.owner, lease_until = excluded.lease_until, attempt = excluded.attempt,
            worker = excluded.worker, started_at = excluded.started_at
        WHERE i.owner = excluded.owner OR ($8 AND i.lease_until < clock_timestamp())
    RETURNING 1
)
SELECT (SELECT result FROM done) AS result, EXISTS (SELECT FROM claimed) AS claimed
"""

_HOLDER = """
SELECT worker, attempt, started_at, lease_until - clock_timestamp() AS remaining
FROM {s}.tool_intents WHERE thread_id = $1 AND tool_call_id = $2
"""

_CALLS = """
SELECT tool_call_id, coalesce(e.tool, i.tool, '') AS tool, e.result, coalesce(e.replays, 0) AS replays,
    coalesce(e.attempt, i.attempt, 1) AS attempt, coalesce(e.worker, i.worker, '') AS worker,
    coalesce(e.created_at, i.started_at) AS at,
    CASE WHEN e.result IS NOT NULL THEN coalesce(e.status, 'finished')
         WHEN i.lease_until > clock_timestamp() THEN 'running' ELSE 'in_doubt' END AS status
FROM (SELECT * FROM {s}.tool_executions WHERE thread_id = $1) e
FULL JOIN (SELECT * FROM {s}.tool_intents WHERE thread_id = $1) i USING (thread_id, tool_call_id)
ORDER BY at, tool_call_id
"""


class PgLedger:
    """``ToolLedger`` on Postgres."""

    _db: PgDatabase

    async def lookup(self, thread_id: str, ledger_keys: Sequence[str]) -> dict[str, Json]:
        """See ``ToolLedger.lookup``."""
        query = self._db.sql(
            "SELECT tool_call_id, result FROM {s}.tool_executions WHERE thread_id = $1 AND tool_call_id = ANY($2)"
        )
        rows = await self._db.run(lambda c: c.fetch(query, thread_id, list(ledger_keys)))
        return {row["tool_call_id"]: any_json(row["result"]) for row in rows}

    async def record(self, thread_id: str, entry: LedgerEntry) -> Json | None:
        """See ``ToolLedger.record``."""
        return await self._db.run(lambda c: _record(self._db, c, thread_id, entry))

    async def load_call(self, thread_id: str, message_id: str, ledger_key: str) -> tuple[Json, Json | None]:
        """See ``ToolLedger.load_call``."""
        query = self._db.sql(_LOAD_CALL)
        row = await self._db.run(lambda c: c.fetchrow(query, thread_id, message_id, ledger_key))
        return any_json(row["tool_calls"]), any_json(row["result"])

    async def claim(self, thread_id: str, intent: Intent) -> Claim:
        """See ``ToolLedger.claim``."""
        return await self._claim(thread_id, intent, replace_doubtful=False)

    async def take_over(self, thread_id: str, intent: Intent) -> Claim:
        """See ``ToolLedger.take_over``."""
        return await self._claim(thread_id, intent, replace_doubtful=True)

    async def _claim(self, thread_id: str, intent: Intent, *, replace_doubtful: bool) -> Claim:
        arguments = (
            thread_id,
            intent.ledger_key,
            intent.owner,
            intent.lease,
            intent.tool,
            intent.attempt,
            intent.worker,
            replace_doubtful,
        )

        async def attempt(connection: asyncpg.Connection) -> Claim | None:
            row = await connection.fetchrow(self._db.sql(_CLAIM), *arguments)
            if row["result"] is not None:
                return Recorded(any_json(row["result"]))
            if row["claimed"]:
                return Claimed()
            holder = await connection.fetchrow(self._db.sql(_HOLDER), thread_id, intent.ledger_key)
            if holder is None:
                return None  # the thread was deleted in between: the next insert says so
            if holder["remaining"] > timedelta():
                return Held(holder["worker"], holder["attempt"], holder["remaining"])
            return InDoubt(holder["worker"], holder["attempt"], holder["started_at"])

        while True:
            claim = await self._db.run(attempt)
            if claim is not None:
                return claim

    async def renew(self, thread_id: str, ledger_key: str, owner: str, lease: timedelta) -> bool:
        """See ``ToolLedger.renew``."""
        statement = self._db.sql(
            "UPDATE {s}.tool_intents SET lease_until = clock_timestamp() + $4::interval "
            "WHERE thread_id = $1 AND tool_call_id = $2 AND owner = $3"
        )
        done = await self._db.run(lambda c: c.execute(statement, thread_id, ledger_key, owner, lease))
        return bool(done == "UPDATE 1")

    async def release(self, thread_id: str, ledger_key: str, owner: str) -> None:
        """See ``ToolLedger.release``."""
        statement = self._db.sql(
            "DELETE FROM {s}.tool_intents WHERE thread_id = $1 AND tool_call_id = $2 AND owner = $3"
        )
        await self._db.run(lambda c: c.execute(statement, thread_id, ledger_key, owner))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[LedgerTransaction]:
        """See ``ToolLedger.transaction``."""
        async with self._db.transaction() as connection:
            yield _PgLedgerTransaction(self._db, connection)

    async def calls(self, thread_id: str) -> list[CallRecord]:
        """See ``ToolLedger.calls``."""
        query = self._db.sql(_CALLS)
        rows = await self._db.run(lambda c: c.fetch(query, thread_id))
        return [
            CallRecord(
                ledger_key=row["tool_call_id"],
                tool=row["tool"],
                status=row["status"],
                attempt=row["attempt"],
                worker=row["worker"],
                replays=row["replays"],
                at=row["at"],
                envelope=any_json(row["result"]),
            )
            for row in rows
        ]

    async def put_interrupt(self, thread_id: str, interrupt_id: str, request: Json) -> None:
        """See ``ToolLedger.put_interrupt``."""
        statement = self._db.sql(
            "INSERT INTO {s}.tool_interrupts (thread_id, interrupt_id, request) VALUES ($1, $2, $3) "
            "ON CONFLICT DO NOTHING"
        )
        await self._db.run(lambda c: c.execute(statement, thread_id, interrupt_id, dump_json(request).decode()))

    async def load_interrupts(self, thread_id: str, interrupt_ids: Sequence[str]) -> dict[str, Json]:
        """See ``ToolLedger.load_interrupts``."""
        query = self._db.sql(
            "SELECT interrupt_id, request FROM {s}.tool_interrupts WHERE thread_id = $1 AND interrupt_id = ANY($2)"
        )
        rows = await self._db.run(lambda c: c.fetch(query, thread_id, list(interrupt_ids)))
        return {row["interrupt_id"]: any_json(row["request"]) for row in rows}

    async def count_replay(self, thread_id: str, ledger_key: str) -> None:
        """See ``ToolLedger.count_replay``."""
        statement = self._db.sql(
            "UPDATE {s}.tool_executions SET replays = coalesce(replays, 0) + 1 "
            "WHERE thread_id = $1 AND tool_call_id = $2"
        )
        await self._db.run(lambda c: c.execute(statement, thread_id, ledger_key))


class _PgLedgerTransaction:
    def __init__(self, db: PgDatabase, connection: asyncpg.Connection) -> None:
        self._db = db
        self._connection = connection

    @property
    def connection(self) -> Any:
        return self._connection

    async def record(self, thread_id: str, entry: LedgerEntry) -> Json | None:
        return await _record(self._db, self._connection, thread_id, entry)


async def _record(db: PgDatabase, connection: asyncpg.Connection, thread_id: str, entry: LedgerEntry) -> Json | None:
    try:
        written = await connection.fetchval(
            db.sql(_RECORD),
            thread_id,
            entry.ledger_key,
            dump_json(entry.envelope).decode(),
            entry.tool,
            entry.status,
            entry.attempt,
            entry.worker,
        )
    except asyncpg.ForeignKeyViolationError as exc:
        raise StoreError(f"thread {thread_id!r} does not exist (any more); its ledger went with it") from exc
    if written:
        return None
    return any_json(await connection.fetchval(db.sql(_RECORDED), thread_id, entry.ledger_key))
