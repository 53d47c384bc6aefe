"""The tool ledger in Postgres: records of finished calls, and claims of running ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg

from ..state.encoding import dump_json
from ._values import no_thread
from .coalesce import Coalesced
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

_LOAD_CALLS = """
SELECT m.tool_calls, e.result
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS c(thread_id, message_id, ledger_key, ordinal)
LEFT JOIN {s}.messages m ON m.message_id = c.message_id AND m.thread_id = c.thread_id
LEFT JOIN {s}.tool_executions e ON e.thread_id = c.thread_id AND e.tool_call_id = c.ledger_key
ORDER BY c.ordinal
"""

# In the order of the keys, so that two statements that record the same calls never wait for one another.
_RECORD_MANY = """
INSERT INTO {s}.tool_executions (thread_id, tool_call_id, result, tool, status, attempt, worker)
SELECT * FROM unnest($1::text[], $2::text[], $3::jsonb[], $4::text[], $5::text[], $6::int[], $7::text[])
    AS r(thread_id, ledger_key, result, tool, status, attempt, worker)
ORDER BY thread_id, ledger_key
ON CONFLICT DO NOTHING
RETURNING thread_id, tool_call_id
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

    def __init__(self) -> None:
        self._load_coalesced = Coalesced(self._load_calls)
        self._record_coalesced = Coalesced(self._record_many)

    async def lookup(self, thread_id: str, ledger_keys: Sequence[str]) -> dict[str, Json]:
        """See ``ToolLedger.lookup``."""
        query = self._db.sql(
            "SELECT tool_call_id, result FROM {s}.tool_executions WHERE thread_id = $1 AND tool_call_id = ANY($2)"
        )
        rows = await self._db.run(lambda c: c.fetch(query, thread_id, list(ledger_keys)))
        return {row["tool_call_id"]: any_json(row["result"]) for row in rows}

    async def record(self, thread_id: str, entry: LedgerEntry) -> Json | None:
        """See ``ToolLedger.record``."""
        return await self._record_coalesced((thread_id, entry))

    async def _record_many(self, records: Sequence[tuple[str, LedgerEntry]]) -> list[Json | None]:
        keys = [(thread_id, entry.ledger_key) for thread_id, entry in records]
        if len(set(keys)) < len(keys):  # one call twice at once: the statement must not race with itself
            return [await self._record_one(thread_id, entry) for thread_id, entry in records]
        columns = (
            [thread_id for thread_id, _ in records],
            [entry.ledger_key for _, entry in records],
            [dump_json(entry.envelope).decode() for _, entry in records],
            [entry.tool for _, entry in records],
            [entry.status for _, entry in records],
            [entry.attempt for _, entry in records],
            [entry.worker for _, entry in records],
        )
        statement = self._db.sql(_RECORD_MANY)

        async def write(connection: asyncpg.Connection) -> list[asyncpg.Record]:
            try:
                rows: list[asyncpg.Record] = await connection.fetch(statement, *columns)
            except asyncpg.ForeignKeyViolationError as exc:
                raise no_thread(", ".join(sorted(set(columns[0])))) from exc
            return rows

        rows = await self._db.run(write)
        written = {(row["thread_id"], row["tool_call_id"]) for row in rows}
        return [None if key in written else (await self.lookup(key[0], [key[1]])).get(key[1]) for key in keys]

    async def _record_one(self, thread_id: str, entry: LedgerEntry) -> Json | None:
        return await self._db.run(lambda c: _record(self._db, c, thread_id, entry))

    async def load_call(self, thread_id: str, message_id: str, ledger_key: str) -> tuple[Json, Json | None]:
        """See ``ToolLedger.load_call``."""
        return await self._load_coalesced((thread_id, message_id, ledger_key))

    async def _load_calls(self, calls: Sequence[tuple[str, str, str]]) -> list[tuple[Json, Json | None]]:
        query = self._db.sql(_LOAD_CALLS)
        columns = [list(column) for column in zip(*calls, strict=True)]
        rows = await self._db.run(lambda c: c.fetch(query, *columns))
        messages: dict[tuple[str, str], Json] = {}
        for (thread_id, message_id, _), row in zip(calls, rows, strict=True):
            if (thread_id, message_id) not in messages:  # the calls of a message come together: read once for all
                messages[thread_id, message_id] = any_json(row["tool_calls"])
        return [(messages[call[:2]], any_json(row["result"])) for call, row in zip(calls, rows, strict=True)]

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
            try:
                row = await connection.fetchrow(self._db.sql(_CLAIM), *arguments)
            except asyncpg.ForeignKeyViolationError as exc:
                raise no_thread(thread_id) from exc
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

        async def put(connection: asyncpg.Connection) -> None:
            try:
                await connection.execute(statement, thread_id, interrupt_id, dump_json(request).decode())
            except asyncpg.ForeignKeyViolationError as exc:
                raise no_thread(thread_id) from exc

        await self._db.run(put)

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
        raise no_thread(thread_id) from exc
    if written:
        return None
    return any_json(await connection.fetchval(db.sql(_RECORDED), thread_id, entry.ledger_key))
