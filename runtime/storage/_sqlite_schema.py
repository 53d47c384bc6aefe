"""The tables in SQLite: 10xGraph's Postgres schema, and ours beside it, with the same names and columns.

JSON is text, and times are ISO 8601 text in UTC with microseconds, so that they sort as they are.
"""

from __future__ import annotations

from datetime import UTC, datetime

BASE_VERSION = 3
"""10xGraph's schema version, in ``schema_version``."""
ADDITIONS_VERSION = 1
"""Ours on top of it, in ``tenxgraph_temporal_schema``."""

VERSION_TABLES = {"schema_version": BASE_VERSION, "tenxgraph_temporal_schema": ADDITIONS_VERSION}

STATEMENTS = (
    "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS tenxgraph_temporal_schema (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)",
    """
    CREATE TABLE IF NOT EXISTS threads (
        thread_id   TEXT NOT NULL PRIMARY KEY,
        thread_name TEXT,
        user_id     TEXT NOT NULL,
        created_at  TEXT NOT NULL,
        updated_at  TEXT NOT NULL,
        meta        TEXT NOT NULL DEFAULT '{}'
    )
    """,
    # AUTOINCREMENT: the id of a deleted row is never given again.
    """
    CREATE TABLE IF NOT EXISTS states (
        state_id   INTEGER PRIMARY KEY AUTOINCREMENT,
        thread_id  TEXT NOT NULL REFERENCES threads (thread_id) ON DELETE CASCADE,
        version    INTEGER NOT NULL DEFAULT 0,
        state_data TEXT NOT NULL,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        meta       TEXT NOT NULL DEFAULT '{}'
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS messages (
        message_id   TEXT NOT NULL PRIMARY KEY,
        thread_id    TEXT NOT NULL REFERENCES threads (thread_id) ON DELETE CASCADE,
        role         TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'system', 'tool')),
        content      TEXT NOT NULL,
        tool_calls   TEXT,
        tool_call_id TEXT,
        reasoning    TEXT,
        created_at   TEXT NOT NULL,
        updated_at   TEXT NOT NULL,
        total_tokens INTEGER DEFAULT 0,
        usages       TEXT DEFAULT '{}',
        meta         TEXT DEFAULT '{}'
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS tool_executions (
        thread_id    TEXT NOT NULL REFERENCES threads (thread_id) ON DELETE CASCADE,
        tool_call_id TEXT NOT NULL,
        result       TEXT NOT NULL,
        created_at   TEXT NOT NULL,
        tool         TEXT,
        status       TEXT,
        attempt      INTEGER,
        worker       TEXT,
        replays      INTEGER,
        PRIMARY KEY (thread_id, tool_call_id)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS tool_intents (
        thread_id    TEXT NOT NULL REFERENCES threads (thread_id) ON DELETE CASCADE,
        tool_call_id TEXT NOT NULL,
        owner        TEXT NOT NULL,
        tool         TEXT NOT NULL,
        attempt      INTEGER NOT NULL,
        worker       TEXT NOT NULL,
        lease_until  TEXT NOT NULL,
        started_at   TEXT NOT NULL,
        PRIMARY KEY (thread_id, tool_call_id)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS tool_interrupts (
        thread_id    TEXT NOT NULL REFERENCES threads (thread_id) ON DELETE CASCADE,
        interrupt_id TEXT NOT NULL,
        request      TEXT NOT NULL,
        created_at   TEXT NOT NULL,
        PRIMARY KEY (thread_id, interrupt_id)
    )
    """,
    "CREATE INDEX IF NOT EXISTS idx_threads_user_id ON threads (user_id)",
    "CREATE INDEX IF NOT EXISTS idx_threads_updated_at ON threads (updated_at DESC)",
    "CREATE UNIQUE INDEX IF NOT EXISTS uq_states_thread_version ON states (thread_id, version)",
    "CREATE INDEX IF NOT EXISTS idx_messages_thread_id ON messages (thread_id, created_at)",
)


def to_text(moment: datetime) -> str:
    """A time as it is stored."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def from_text(text: str) -> datetime:
    """A time that was stored."""
    return datetime.fromisoformat(text)
