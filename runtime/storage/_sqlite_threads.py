"""Versioned thread state in SQLite."""

from __future__ import annotations

import sqlite3
from typing import Any

import aiosqlite

from ..errors import ForbiddenError
from ..state.encoding import Fields, clean_text, dump_json, join_fields, load_json, split_fields
from ._sqlite_database import SqliteDatabase
from ._sqlite_ledger import insert_result
from ._sqlite_schema import to_text
from ._values import already_there, check_commit, meta_of, name_of, origin_of
from .contract import Commit, Committed, Head, MessageIdTaken

_LOAD_HEAD = """
SELECT t.user_id, s.state_id, s.version, s.meta, CASE WHEN s.state_id IS ?2 THEN NULL ELSE s.state_data END AS data
FROM threads t LEFT JOIN states s ON s.state_id = (
    SELECT state_id FROM states WHERE thread_id = ?1 ORDER BY version DESC LIMIT 1)
WHERE t.thread_id = ?1
"""

_TAKEN = "SELECT message_id FROM messages WHERE message_id IN (SELECT value FROM json_each(?)) AND thread_id <> ?"

_CREATE_THREAD = """
INSERT INTO threads (thread_id, thread_name, user_id, created_at, updated_at, meta) VALUES (?1, ?2, ?3, ?4, ?4, ?5)
"""

_INSERT_STATE = """
INSERT INTO states (thread_id, version, state_data, created_at, updated_at, meta) VALUES (?1, ?2, ?3, ?4, ?4, ?5)
RETURNING state_id
"""

_SAY = """
INSERT INTO messages (message_id, thread_id, role, content, tool_calls, reasoning, total_tokens, usages, meta,
    created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10)
ON CONFLICT (message_id) DO UPDATE SET content = excluded.content, reasoning = excluded.reasoning,
    usages = excluded.usages, updated_at = excluded.updated_at
"""


class SqliteThreads:
    """``ThreadStore`` on SQLite."""

    _db: SqliteDatabase
    _enforce_user_isolation: bool
    _state_history_limit: int

    async def load_head(self, thread_id: str, user_id: str | None, *, known_state_id: int | None = None) -> Head | None:
        """See ``ThreadStore.load_head``."""
        rows = await self._db.read(_LOAD_HEAD, (thread_id, known_state_id))
        if not rows or self._is_foreign(rows[0]["user_id"], user_id):
            return None
        (row,) = rows
        return head_of(thread_id, row, split_fields(row["data"]) if row["data"] is not None else None)

    async def commit(self, commit: Commit) -> Committed:
        """See ``ThreadStore.commit``."""
        check_commit(commit)
        state, meta = join_fields(commit.fields).decode(), dump_json(meta_of(commit)).decode()
        messages = _message_rows(commit)
        message_ids = dump_json([message.message_id for message in commit.messages]).decode()

        async def write(connection: aiosqlite.Connection) -> Committed:
            now = self._db.clock.now()
            head = await self._head(connection, commit)
            current = head.version if head else 0
            state_id = head.state_id if head else 0
            if current != commit.expected_version or commit.expected_state_id not in (None, state_id):
                return already_there(commit, head)
            taken = await connection.execute_fetchall(_TAKEN, (message_ids, commit.thread_id))
            if taken:
                raise MessageIdTaken(frozenset(row["message_id"] for row in taken))
            if head is None:
                await connection.execute_fetchall(_CREATE_THREAD, _thread_row(commit, to_text(now)))
            version = current + 1
            rows = await connection.execute_fetchall(
                _INSERT_STATE, (commit.thread_id, version, state, to_text(now), meta)
            )
            (row,) = rows
            await connection.execute_fetchall(
                "UPDATE threads SET updated_at = ? WHERE thread_id = ?", (to_text(now), commit.thread_id)
            )
            if self._state_history_limit > 0:
                await connection.execute_fetchall(
                    "DELETE FROM states WHERE thread_id = ? AND version <= ?",
                    (commit.thread_id, version - self._state_history_limit),
                )
            for message in messages:
                await connection.execute_fetchall(_SAY, (*message, to_text(self._db.clock.now())))
            for entry in commit.results:
                await insert_result(connection, commit.thread_id, entry, to_text(self._db.clock.now()))
            return Committed(state_id=row["state_id"], version=version)

        return await self._db.write(write)

    async def _head(self, connection: aiosqlite.Connection, commit: Commit) -> Head | None:
        rows = await connection.execute_fetchall(
            "SELECT t.user_id, s.state_id, s.version, s.meta FROM threads t LEFT JOIN states s USING (thread_id) "
            "WHERE t.thread_id = ? ORDER BY s.version DESC LIMIT 1",
            (commit.thread_id,),
        )
        for row in rows:
            if self._is_foreign(row["user_id"], commit.user_id):
                raise ForbiddenError(commit.thread_id)
            return head_of(commit.thread_id, row, None)
        return None

    def _is_foreign(self, owner: str, user_id: str | None) -> bool:
        return self._enforce_user_isolation and user_id is not None and owner != user_id


def head_of(thread_id: str, row: sqlite3.Row, fields: Fields | None) -> Head:
    """A ``Head`` from a row with ``user_id, state_id, version, meta``."""
    return Head(
        thread_id=thread_id,
        user_id=row["user_id"],
        version=row["version"] or 0,
        state_id=row["state_id"] or 0,
        fields=fields,
        origin=origin_of(load_json(row["meta"])) if row["meta"] else None,
    )


def _thread_row(commit: Commit, now: str) -> tuple[Any, ...]:
    return commit.thread_id, name_of(commit), commit.user_id, now, dump_json(commit.thread_meta or {}).decode()


def _message_rows(commit: Commit) -> list[tuple[Any, ...]]:
    return [
        (
            message.message_id,
            commit.thread_id,
            message.role,
            dump_json(message.content).decode(),
            None if message.tool_calls is None else dump_json(message.tool_calls).decode(),
            None if message.reasoning is None else clean_text(message.reasoning),
            message.total_tokens,
            dump_json(message.usages).decode(),
            dump_json(message.meta).decode(),
        )
        for message in commit.messages
    ]
