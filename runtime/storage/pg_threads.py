"""Versioned thread state in Postgres: one statement per read, one per commit."""

from __future__ import annotations

from typing import Any

import asyncpg

from ..errors import ForbiddenError
from ..state.encoding import Fields, changes, dump_json, join_fields, split_fields
from ._values import already_there, check_commit, meta_of, name_of, origin_of
from .contract import Commit, Committed, Head, MessageIdTaken
from .pg_database import PgDatabase, any_json

_FIRST_COMMITS = 3
"""How often a first commit is tried against deletions of the thread."""

_LOAD_HEAD = """
SELECT t.user_id, s.state_id, s.version, s.meta, CASE WHEN s.state_id = $2 THEN NULL ELSE s.state_data END AS data
FROM {s}.threads t
LEFT JOIN LATERAL (
    SELECT * FROM {s}.states WHERE thread_id = $1 ORDER BY version DESC LIMIT 1
) s ON true
WHERE t.thread_id = $1
"""

# One round trip. `present` serialises the writers of a thread; a writer that waited for the lock may still see
# the head of before its wait (one statement, one snapshot), and then the unique index on (thread_id, version)
# refuses its row. Dividing by no row aborts the statement where it would leave a thread without a state. NULL content
# is how a message id of another thread aborts it.
_COMMIT = """
WITH created AS (
    INSERT INTO {s}.threads (thread_id, thread_name, user_id, meta)
    SELECT $1, $9::text, $10::text, $11::jsonb WHERE $3 = 0
    ON CONFLICT (thread_id) DO NOTHING
    RETURNING user_id
), present AS MATERIALIZED (
    SELECT user_id FROM {s}.threads WHERE thread_id = $1 FOR NO KEY UPDATE
), locked AS (
    SELECT user_id FROM created UNION ALL SELECT user_id FROM present
), head AS (
    SELECT state_id, version, meta FROM {s}.states WHERE thread_id = $1 ORDER BY version DESC LIMIT 1
), fits AS (
    SELECT $3::bigint + 1 AS version FROM locked LEFT JOIN head ON true
    WHERE coalesce(head.version, 0) = $3 AND ($12::bigint IS NULL OR coalesce(head.state_id, 0) = $12)
        AND ($2::text IS NULL OR locked.user_id = $2)
), written AS (
    INSERT INTO {s}.states (thread_id, version, state_data, meta)
    SELECT $1, fits.version, {data}, $5::jsonb FROM fits
    RETURNING state_id, version
), touched AS (
    UPDATE {s}.threads SET updated_at = now() FROM fits WHERE thread_id = $1
), pruned AS (
    DELETE FROM {s}.states USING fits
    WHERE $6::bigint > 0 AND states.thread_id = $1 AND states.version <= fits.version - $6
), said AS (
    INSERT INTO {s}.messages AS m (message_id, thread_id, role, content, tool_calls, reasoning, total_tokens,
        usages, meta, created_at)
    SELECT r.message_id, $1, r.role::{s}.message_role, r.content, r.tool_calls, r.reasoning, r.total_tokens,
        r.usages, r.meta, clock_timestamp() + r.ordinal * interval '1 microsecond'
    FROM fits, jsonb_to_recordset($7::jsonb) AS r(ordinal int, message_id text, role text, content text,
        tool_calls jsonb, reasoning text, total_tokens int, usages jsonb, meta jsonb)
    ON CONFLICT (message_id) DO UPDATE SET
        content = CASE WHEN m.thread_id = excluded.thread_id THEN excluded.content END,
        reasoning = excluded.reasoning, usages = excluded.usages, updated_at = now()
), recorded AS (
    INSERT INTO {s}.tool_executions (thread_id, tool_call_id, result, tool, status, attempt, worker)
    SELECT $1, r.ledger_key, r.envelope, r.tool, r.status, r.attempt, r.worker
    FROM fits, jsonb_to_recordset($8::jsonb) AS r(ledger_key text, envelope jsonb, tool text, status text,
        attempt int, worker text)
    ON CONFLICT DO NOTHING
)
SELECT locked.user_id, head.state_id, head.version, head.meta, written.state_id AS new_state_id,
    CASE WHEN EXISTS (SELECT FROM created) THEN 1 / (SELECT count(*) FROM written) END AS no_thread_without_a_state
FROM (SELECT 1) AS one
LEFT JOIN locked ON true LEFT JOIN head ON true LEFT JOIN written ON true
"""

_WHOLE = "$4::jsonb"
# $4 has what the row $12 has not: other values of `set`, and the new items of the lists in `append`.
_CHANGED = """(
    SELECT base.state_data || ($4::jsonb->'set') || coalesce(
        (SELECT jsonb_object_agg(key, base.state_data->key || value) FROM jsonb_each($4::jsonb->'append')), '{{}}')
    FROM {s}.states AS base WHERE base.state_id = $12
)"""
_WORTH_IT = 4096
"""Bytes of a state from which on only what changed is sent."""
_COMMIT_WHOLE = _COMMIT.replace("{data}", _WHOLE)
_COMMIT_CHANGED = _COMMIT.replace("{data}", _CHANGED)


class PgThreads:
    """``ThreadStore`` on Postgres."""

    _db: PgDatabase
    _enforce_user_isolation: bool
    _state_history_limit: int

    async def load_head(self, thread_id: str, user_id: str | None, *, known_state_id: int | None = None) -> Head | None:
        """See ``ThreadStore.load_head``."""
        query = self._db.sql(_LOAD_HEAD)
        row = await self._db.run(lambda c: c.fetchrow(query, thread_id, known_state_id))
        if row is None or self._is_foreign(row["user_id"], user_id):
            return None
        return head_of(thread_id, row, split_fields(row["data"]) if row["data"] is not None else None)

    async def commit(self, commit: Commit) -> Committed:
        """See ``ThreadStore.commit``."""
        check_commit(commit)
        owner = commit.user_id if self._enforce_user_isolation else None
        base = commit.base if commit.expected_state_id and _is_large(commit) else None
        if base and base.keys() <= commit.fields.keys():
            data, statement = changes(base, commit.fields), _COMMIT_CHANGED
        else:
            data, statement = join_fields(commit.fields), _COMMIT_WHOLE
        arguments = (
            commit.thread_id,
            owner,
            commit.expected_version,
            data.decode(),
            dump_json(meta_of(commit)).decode(),
            self._state_history_limit,
            _message_rows(commit),
            _ledger_rows(commit),
            name_of(commit),
            commit.user_id,
            dump_json(commit.thread_meta or {}).decode(),
            commit.expected_state_id,
        )
        statement = self._db.sql(statement)

        async def write(connection: asyncpg.Connection) -> asyncpg.Record | None:
            try:
                return await connection.fetchrow(statement, *arguments)
            except (asyncpg.UniqueViolationError, asyncpg.DivisionByZeroError):
                return None  # another writer made this version, or deleted the thread, while we waited for the lock
            except asyncpg.NotNullViolationError as exc:
                if exc.column_name == "content":
                    raise MessageIdTaken(await self._taken(connection, commit)) from exc
                raise

        for _ in range(_FIRST_COMMITS):
            row = await self._db.run(write)
            if row is not None or commit.expected_version or commit.expected_state_id:
                break
            if await self.load_head(commit.thread_id, commit.user_id) is not None:
                break  # otherwise the thread was deleted under the commit, which is its first one again
        if row is not None and row["new_state_id"] is not None:
            return Committed(state_id=row["new_state_id"], version=commit.expected_version + 1)
        if row is None or row["user_id"] is None:  # what the statement saw is out of date
            head = await self.load_head(commit.thread_id, commit.user_id)
        else:
            if self._is_foreign(row["user_id"], commit.user_id):
                raise ForbiddenError(commit.thread_id)
            head = head_of(commit.thread_id, row, None)
        return already_there(commit, head)

    async def _taken(self, connection: asyncpg.Connection, commit: Commit) -> frozenset[str]:
        rows = await connection.fetch(
            self._db.sql("SELECT message_id FROM {s}.messages WHERE message_id = ANY($1) AND thread_id <> $2"),
            [message.message_id for message in commit.messages],
            commit.thread_id,
        )
        return frozenset(row["message_id"] for row in rows)

    def _is_foreign(self, owner: str, user_id: str | None) -> bool:
        return self._enforce_user_isolation and user_id is not None and owner != user_id


def head_of(thread_id: str, row: Any, fields: Fields | None) -> Head:
    """A ``Head`` from a row with ``user_id, state_id, version, meta``."""
    return Head(
        thread_id=thread_id,
        user_id=row["user_id"],
        version=row["version"] or 0,
        state_id=row["state_id"] or 0,
        fields=fields,
        origin=origin_of(any_json(row["meta"])),
    )


def _is_large(commit: Commit) -> bool:
    return sum(map(len, commit.fields.values())) >= _WORTH_IT


def _message_rows(commit: Commit) -> str:
    rows = [
        {
            "ordinal": ordinal,
            "message_id": message.message_id,
            "role": message.role,
            "content": dump_json(message.content).decode(),
            "tool_calls": message.tool_calls,
            "reasoning": message.reasoning,
            "total_tokens": message.total_tokens,
            "usages": message.usages,
            "meta": message.meta,
        }
        for ordinal, message in enumerate(commit.messages)
    ]
    return dump_json(rows).decode()


def _ledger_rows(commit: Commit) -> str:
    return dump_json(
        [
            {
                "ledger_key": entry.ledger_key,
                "envelope": entry.envelope,
                "tool": entry.tool,
                "status": entry.status,
                "attempt": entry.attempt,
                "worker": entry.worker,
            }
            for entry in commit.results
        ]
    ).decode()
