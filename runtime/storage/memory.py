"""A store in this process, for trying things out and for tests: same promises, nothing survives."""

from __future__ import annotations

import asyncio
from datetime import datetime

from ..errors import ForbiddenError
from ..state.encoding import dump_json, join_fields, load_json
from ._memory_data import MemoryData, ResultRow, StateRow, ThreadRow, dump_message, head_of
from ._memory_ledger import MemoryLedger
from ._values import already_there, check_commit, meta_of, name_of, origin_of
from .contract import Commit, Committed, Head, MessageIdTaken, MessageRow, ThreadInfo, VersionInfo


class MemoryStore(MemoryLedger):
    """Versioned state and tool ledger in the memory of one event loop.

    Args:
        state_history_limit: Kept versions per thread; 0 keeps all.
        enforce_user_isolation: Refuse callers with another ``user_id`` than the thread's.
    """

    def __init__(self, *, state_history_limit: int = 20, enforce_user_isolation: bool = True) -> None:
        self._data = MemoryData()
        self._state_history_limit = state_history_limit
        self._enforce_user_isolation = enforce_user_isolation

    async def setup(self) -> None:
        """See ``Store.setup``: there is nothing to do."""

    async def check(self) -> None:
        """See ``Store.check``: it is always there."""

    async def close(self) -> None:
        """See ``Store.close``: what it holds goes with the object."""

    async def load_head(self, thread_id: str, user_id: str | None, *, known_state_id: int | None = None) -> Head | None:
        """See ``ThreadStore.load_head``."""
        await asyncio.sleep(0)
        thread = self._owned(thread_id, user_id)
        if thread is None:
            return None
        row = thread.head
        return head_of(thread_id, thread, row, with_fields=row is not None and row.state_id != known_state_id)

    async def commit(self, commit: Commit) -> Committed:
        """See ``ThreadStore.commit``."""
        await asyncio.sleep(0)
        check_commit(commit)
        data, thread = self._data, self._owned(commit.thread_id, commit.user_id)
        if thread is None and commit.thread_id in data.threads:
            raise ForbiddenError(commit.thread_id)
        current = thread.head.version if thread and thread.head else 0
        state_id = thread.head.state_id if thread and thread.head else 0
        if current != commit.expected_version or commit.expected_state_id not in (None, state_id):
            head = head_of(commit.thread_id, thread, thread.head, with_fields=False) if thread else None
            return already_there(commit, head)
        elsewhere = data.message_threads
        taken = {
            m.message_id for m in commit.messages if elsewhere.get(m.message_id, commit.thread_id) != commit.thread_id
        }
        if taken:
            raise MessageIdTaken(frozenset(taken))
        # Encode everything first: what cannot be stored must fail before anything is written.
        said = thread.messages if thread else {}
        messages = {m.message_id: dump_message(m, said.get(m.message_id)) for m in commit.messages}
        results = [ResultRow(entry, dump_json(entry.envelope), data.clock.now()) for entry in commit.results]
        meta, thread_meta = dump_json(meta_of(commit)), dump_json(commit.thread_meta or {})

        now = data.clock.now()
        if thread is None:
            thread = ThreadRow(commit.user_id, name_of(commit), thread_meta, created_at=now, updated_at=now)
            data.threads[commit.thread_id] = thread
        row = StateRow(next(data.state_ids), current + 1, dict(commit.fields), meta, now)
        thread.updated_at = now
        thread.states.append(row)
        if self._state_history_limit > 0:
            thread.states[:] = [s for s in thread.states if s.version > row.version - self._state_history_limit]
        thread.messages.update(messages)
        data.message_threads.update(dict.fromkeys(messages, commit.thread_id))
        for result in results:
            thread.results.setdefault(result.entry.ledger_key, result)
        return Committed(state_id=row.state_id, version=row.version)

    async def list_threads(
        self,
        *,
        user_id: str | None = None,
        limit: int = 50,
        before: datetime | None = None,
        before_thread: str | None = None,
    ) -> list[ThreadInfo]:
        """See ``ThreadAdmin.list_threads``."""
        await asyncio.sleep(0)
        found = [
            (thread_id, thread)
            for thread_id, thread in self._data.threads.items()
            if (user_id is None or thread.user_id == user_id)
            and (before is None or _follows((thread.updated_at, thread_id), before, before_thread))
        ]
        found.sort(key=lambda item: item[0])
        found.sort(key=lambda item: item[1].updated_at, reverse=True)
        return [
            ThreadInfo(
                thread_id=thread_id,
                user_id=thread.user_id,
                name=thread.name,
                version=thread.head.version if thread.head else 0,
                status=_status_of(thread.head),
                created_at=thread.created_at,
                updated_at=thread.updated_at,
                meta=load_json(thread.meta),
            )
            for thread_id, thread in found[:limit]
        ]

    async def list_versions(self, thread_id: str, user_id: str | None) -> list[VersionInfo]:
        """See ``ThreadAdmin.list_versions``."""
        await asyncio.sleep(0)
        thread = self._owned(thread_id, user_id)
        return [
            VersionInfo(
                version=row.version,
                state_id=row.state_id,
                created_at=row.created_at,
                origin=origin_of(load_json(row.meta)),
                size_bytes=len(join_fields(row.fields)),
            )
            for row in reversed(thread.states if thread else [])
        ]

    async def load_version(self, thread_id: str, user_id: str | None, version: int) -> Head | None:
        """See ``ThreadAdmin.load_version``."""
        await asyncio.sleep(0)
        thread = self._owned(thread_id, user_id)
        for row in thread.states if thread else []:
            if thread is not None and row.version == version:
                return head_of(thread_id, thread, row, with_fields=True)
        return None

    async def list_messages(
        self, thread_id: str, user_id: str | None, *, limit: int = 100, after: str | None = None
    ) -> list[MessageRow]:
        """See ``ThreadAdmin.list_messages``."""
        await asyncio.sleep(0)
        thread = self._owned(thread_id, user_id)
        message_ids = list(thread.messages) if thread else []
        if after is not None:
            message_ids = message_ids[message_ids.index(after) + 1 :] if after in message_ids else []
        return [MessageRow(**load_json(thread.messages[key])) for key in message_ids[:limit]] if thread else []

    async def delete_thread(self, thread_id: str, user_id: str | None) -> bool:
        """See ``ThreadAdmin.delete_thread``."""
        await asyncio.sleep(0)
        return self._owned(thread_id, user_id) is not None and self._data.delete(thread_id)

    async def purge(self, *, older_than: datetime, batch: int = 100) -> int:
        """See ``ThreadAdmin.purge``."""
        await asyncio.sleep(0)
        old = [(row.updated_at, key) for key, row in self._data.threads.items() if row.updated_at < older_than]
        return sum(self._data.delete(thread_id) for _, thread_id in sorted(old)[:batch])

    def _owned(self, thread_id: str, user_id: str | None) -> ThreadRow | None:
        thread = self._data.threads.get(thread_id)
        foreign = thread and self._enforce_user_isolation and user_id is not None and thread.user_id != user_id
        return None if foreign else thread


def _follows(line: tuple[datetime, str], before: datetime, before_thread: str | None) -> bool:
    updated_at, thread_id = line
    return updated_at < before or (before_thread is not None and updated_at == before and thread_id > before_thread)


def _status_of(row: StateRow | None) -> str:
    meta = load_json(row.fields["execution_meta"]) if row and "execution_meta" in row.fields else None
    return str(meta.get("status") or "") if isinstance(meta, dict) else ""
