"""The SQLite store: one file, several processes, no server."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from ..state.encoding import load_json, split_fields
from ._sqlite_database import SqliteDatabase
from ._sqlite_ledger import SqliteLedger
from ._sqlite_schema import from_text, to_text
from ._sqlite_threads import SqliteThreads, head_of
from ._values import origin_of
from .contract import Head, MessageRow, ThreadInfo, VersionInfo

_LIST_THREADS = """
SELECT t.*, s.version, json_extract(s.state_data, '$.execution_meta.status') AS status
FROM (
    SELECT * FROM threads WHERE (?1 IS NULL OR user_id = ?1)
        AND (?2 IS NULL OR updated_at < ?2 OR (updated_at = ?2 AND thread_id > ?4))
    ORDER BY updated_at DESC, thread_id LIMIT ?3
) t LEFT JOIN states s ON s.state_id = (
    SELECT state_id FROM states WHERE thread_id = t.thread_id ORDER BY version DESC LIMIT 1)
ORDER BY t.updated_at DESC, t.thread_id
"""

_LIST_MESSAGES = """
SELECT * FROM messages WHERE thread_id = ?1 AND (?2 IS NULL OR (created_at, message_id) > (
    SELECT created_at, message_id FROM messages WHERE message_id = ?2 AND thread_id = ?1))
ORDER BY created_at, message_id LIMIT ?3
"""

_PURGE = """
DELETE FROM threads WHERE thread_id IN (
    SELECT thread_id FROM threads WHERE updated_at < ? ORDER BY updated_at LIMIT ?) RETURNING 1
"""


class SqliteStore(SqliteThreads, SqliteLedger):
    """Versioned state and tool ledger in one SQLite file, which several processes may share.

    Writers take turns, so it suits one machine and moderate load; Postgres is for the rest.

    Args:
        database: The open file.
        state_history_limit: Kept versions per thread; 0 keeps all.
        enforce_user_isolation: Refuse callers with another ``user_id`` than the thread's.
    """

    def __init__(
        self, database: SqliteDatabase, *, state_history_limit: int = 20, enforce_user_isolation: bool = True
    ) -> None:
        self._db = database
        self._state_history_limit = state_history_limit
        self._enforce_user_isolation = enforce_user_isolation

    @classmethod
    async def open(cls, path: str | Path, *, retry_timeout: float = 10.0, **options: Any) -> SqliteStore:
        """Open the file at ``path``, or make it; ``options`` as the constructor's.

        Args:
            path: On a local disk: SQLite's locks do not work over networks.
            retry_timeout: Seconds for which the lock of another writer is waited for.
            options: ``state_history_limit``, ``enforce_user_isolation``.

        Raises:
            SettingsError: There cannot be a database at ``path``.
            StoreUnavailable: The file is locked, or cannot be reached.
        """
        database = SqliteDatabase(Path(path), retry_timeout=retry_timeout)
        store = cls(database, **options)
        await database.open()
        return store

    @classmethod
    async def from_url(cls, url: str, **options: Any) -> SqliteStore:
        """Open ``sqlite:///relative/path`` or ``sqlite:////absolute/path``; ``options`` as of ``open``.

        Raises:
            SettingsError: The URL names no file.
            StoreUnavailable: As ``open``.
        """
        path = url.removeprefix("sqlite:///")
        if path in (url, "", ":memory:"):
            raise SettingsError(
                "TENXGRAPH_DATABASE_URL names no file; use sqlite:///path/to/file, or memory: for no file at all"
            )
        return await cls.open(path, **options)

    async def setup(self) -> None:
        """See ``Store.setup``."""
        await self._db.migrate()

    async def check(self) -> None:
        """See ``Store.check``."""
        await self._db.check()

    async def close(self) -> None:
        """See ``Store.close``."""
        await self._db.close()

    async def list_threads(
        self,
        *,
        user_id: str | None = None,
        limit: int = 50,
        before: datetime | None = None,
        before_thread: str | None = None,
    ) -> list[ThreadInfo]:
        """See ``ThreadAdmin.list_threads``."""
        rows = await self._db.read(_LIST_THREADS, (user_id, to_text(before) if before else None, limit, before_thread))
        return [
            ThreadInfo(
                thread_id=row["thread_id"],
                user_id=row["user_id"],
                name=row["thread_name"] or "",
                version=row["version"] or 0,
                status=row["status"] or "",
                created_at=from_text(row["created_at"]),
                updated_at=from_text(row["updated_at"]),
                meta=load_json(row["meta"]),
            )
            for row in rows
        ]

    async def list_versions(self, thread_id: str, user_id: str | None) -> list[VersionInfo]:
        """See ``ThreadAdmin.list_versions``."""
        if not await self._exists_for(thread_id, user_id):
            return []
        rows = await self._db.read(
            "SELECT version, state_id, created_at, meta, length(CAST(state_data AS BLOB)) AS size "
            "FROM states WHERE thread_id = ? ORDER BY version DESC",
            (thread_id,),
        )
        return [
            VersionInfo(
                version=row["version"],
                state_id=row["state_id"],
                created_at=from_text(row["created_at"]),
                origin=origin_of(load_json(row["meta"])),
                size_bytes=row["size"],
            )
            for row in rows
        ]

    async def load_version(self, thread_id: str, user_id: str | None, version: int) -> Head | None:
        """See ``ThreadAdmin.load_version``."""
        if not await self._exists_for(thread_id, user_id):
            return None
        rows = await self._db.read(
            "SELECT t.user_id, s.state_id, s.version, s.meta, s.state_data FROM threads t "
            "JOIN states s USING (thread_id) WHERE t.thread_id = ? AND s.version = ?",
            (thread_id, version),
        )
        return head_of(thread_id, rows[0], split_fields(rows[0]["state_data"])) if rows else None

    async def list_messages(
        self, thread_id: str, user_id: str | None, *, limit: int = 100, after: str | None = None
    ) -> list[MessageRow]:
        """See ``ThreadAdmin.list_messages``."""
        if not await self._exists_for(thread_id, user_id):
            return []
        rows = await self._db.read(_LIST_MESSAGES, (thread_id, after, limit))
        return [
            MessageRow(
                message_id=row["message_id"],
                role=row["role"],
                content=load_json(row["content"]),
                tool_calls=load_json(row["tool_calls"]) if row["tool_calls"] else None,
                reasoning=row["reasoning"],
                total_tokens=row["total_tokens"] or 0,
                usages=load_json(row["usages"]) or {},
                meta=load_json(row["meta"]) or {},
            )
            for row in rows
        ]

    async def delete_thread(self, thread_id: str, user_id: str | None) -> bool:
        """See ``ThreadAdmin.delete_thread``."""
        if not await self._exists_for(thread_id, user_id):
            return False
        rows = await self._db.write(
            lambda connection: connection.execute_fetchall(
                "DELETE FROM threads WHERE thread_id = ? RETURNING 1", (thread_id,)
            )
        )
        return bool(rows)

    async def purge(self, *, older_than: datetime, batch: int = 100) -> int:
        """See ``ThreadAdmin.purge``."""
        rows = await self._db.write(
            lambda connection: connection.execute_fetchall(_PURGE, (to_text(older_than), batch))
        )
        return len(list(rows))

    async def _exists_for(self, thread_id: str, user_id: str | None) -> bool:
        rows = await self._db.read("SELECT user_id FROM threads WHERE thread_id = ?", (thread_id,))
        return bool(rows) and not self._is_foreign(rows[0]["user_id"], user_id)
