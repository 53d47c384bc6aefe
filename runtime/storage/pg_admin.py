"""What operators do with threads in Postgres: list, read, delete, purge."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..state.encoding import load_json, split_fields
from ._values import origin_of
from .contract import Head, MessageRow, ThreadInfo, VersionInfo
from .pg_database import any_json
from .pg_threads import PgThreads, head_of

_LIST_THREADS = """
SELECT t.*, s.version, s.state_data -> 'execution_meta' ->> 'status' AS status
FROM {s}.threads t
LEFT JOIN LATERAL (
    SELECT version, state_data FROM {s}.states s WHERE s.thread_id = t.thread_id ORDER BY version DESC LIMIT 1
) s ON true
WHERE ($1::text IS NULL OR t.user_id = $1)
    AND ($2::timestamptz IS NULL OR t.updated_at < $2 OR (t.updated_at = $2 AND t.thread_id COLLATE "C" > $4))
ORDER BY t.updated_at DESC, t.thread_id COLLATE "C" LIMIT $3
"""

_PURGE = """
WITH old AS (
    SELECT thread_id FROM {s}.threads WHERE updated_at < $1 ORDER BY updated_at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {s}.threads t USING old WHERE t.thread_id = old.thread_id RETURNING 1
)
SELECT count(*) FROM gone
"""

_MESSAGES = """
SELECT * FROM {s}.messages m
WHERE thread_id = $1 AND ($2::text IS NULL OR (created_at, message_id) > (
    SELECT created_at, message_id FROM {s}.messages WHERE message_id = $2 AND thread_id = $1))
ORDER BY created_at, message_id LIMIT $3
"""


class PgAdmin(PgThreads):
    """``ThreadAdmin`` on Postgres."""

    async def list_threads(
        self,
        *,
        user_id: str | None = None,
        limit: int = 50,
        before: datetime | None = None,
        before_thread: str | None = None,
    ) -> list[ThreadInfo]:
        """See ``ThreadAdmin.list_threads``."""
        query = self._db.sql(_LIST_THREADS)
        rows = await self._db.run(lambda c: c.fetch(query, user_id, before, limit, before_thread))
        return [
            ThreadInfo(
                thread_id=row["thread_id"],
                user_id=row["user_id"],
                name=row["thread_name"] or "",
                version=row["version"] or 0,
                status=row["status"] or "",
                created_at=row["created_at"],
                updated_at=row["updated_at"],
                meta=any_json(row["meta"]) or {},
            )
            for row in rows
        ]

    async def list_versions(self, thread_id: str, user_id: str | None) -> list[VersionInfo]:
        """See ``ThreadAdmin.list_versions``."""
        if not await self._exists_for(thread_id, user_id):
            return []
        query = self._db.sql(
            "SELECT version, state_id, created_at, meta, octet_length(state_data::text) AS size "
            "FROM {s}.states WHERE thread_id = $1 ORDER BY version DESC"
        )
        rows = await self._db.run(lambda c: c.fetch(query, thread_id))
        return [
            VersionInfo(
                version=row["version"],
                state_id=row["state_id"],
                created_at=row["created_at"],
                origin=origin_of(any_json(row["meta"])),
                size_bytes=row["size"],
            )
            for row in rows
        ]

    async def load_version(self, thread_id: str, user_id: str | None, version: int) -> Head | None:
        """See ``ThreadAdmin.load_version``."""
        query = self._db.sql(
            "SELECT t.user_id, s.state_id, s.version, s.meta, s.state_data FROM {s}.threads t "
            "JOIN {s}.states s USING (thread_id) WHERE t.thread_id = $1 AND s.version = $2"
        )
        row = await self._db.run(lambda c: c.fetchrow(query, thread_id, version))
        if row is None or self._is_foreign(row["user_id"], user_id):
            return None
        return head_of(thread_id, row, split_fields(row["state_data"]))

    async def list_messages(
        self, thread_id: str, user_id: str | None, *, limit: int = 100, after: str | None = None
    ) -> list[MessageRow]:
        """See ``ThreadAdmin.list_messages``."""
        if not await self._exists_for(thread_id, user_id):
            return []
        query = self._db.sql(_MESSAGES)
        rows = await self._db.run(lambda c: c.fetch(query, thread_id, after, limit))
        return [
            MessageRow(
                message_id=row["message_id"],
                role=row["role"],
                content=load_json(row["content"]),
                tool_calls=any_json(row["tool_calls"]),
                reasoning=row["reasoning"],
                total_tokens=row["total_tokens"] or 0,
                usages=any_json(row["usages"]) or {},
                meta=any_json(row["meta"]) or {},
            )
            for row in rows
        ]

    async def delete_thread(self, thread_id: str, user_id: str | None) -> bool:
        """See ``ThreadAdmin.delete_thread``."""
        if not await self._exists_for(thread_id, user_id):
            return False
        statement = self._db.sql("DELETE FROM {s}.threads WHERE thread_id = $1")
        done = await self._db.run(lambda c: c.execute(statement, thread_id))
        return bool(done == "DELETE 1")

    async def purge(self, *, older_than: datetime, batch: int = 100) -> int:
        """See ``ThreadAdmin.purge``."""
        statement = self._db.sql(_PURGE)
        count: Any = await self._db.run(lambda c: c.fetchval(statement, older_than, batch))
        return int(count)

    async def _exists_for(self, thread_id: str, user_id: str | None) -> bool:
        query = self._db.sql("SELECT user_id FROM {s}.threads WHERE thread_id = $1")
        owner = await self._db.run(lambda c: c.fetchval(query, thread_id))
        return owner is not None and not self._is_foreign(owner, user_id)
