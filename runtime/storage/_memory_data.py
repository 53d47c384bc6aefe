"""What a ``MemoryStore`` holds: rows as a database would keep them, JSON as bytes that nobody shares."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from ..state.encoding import Fields, dump_json, load_json
from ._values import Clock, origin_of
from .contract import Head, Json, LedgerEntry, MessageRow


@dataclass(frozen=True, slots=True)
class StateRow:
    """A version of a thread's state."""

    state_id: int
    version: int
    fields: Fields
    meta: bytes
    created_at: datetime


@dataclass(slots=True)
class ResultRow:
    """A ledger record. The entry's envelope lives in ``envelope``, encoded."""

    entry: LedgerEntry
    envelope: bytes
    at: datetime
    replays: int = 0


@dataclass(frozen=True, slots=True)
class IntentRow:
    """A claim."""

    owner: str
    tool: str
    attempt: int
    worker: str
    lease_until: datetime
    started_at: datetime


@dataclass(slots=True)
class ThreadRow:
    """A thread with everything that is deleted with it; ``states`` are in the order of their versions."""

    user_id: str
    name: str
    meta: bytes
    created_at: datetime
    updated_at: datetime
    states: list[StateRow] = field(default_factory=list)
    messages: dict[str, bytes] = field(default_factory=dict)
    results: dict[str, ResultRow] = field(default_factory=dict)
    intents: dict[str, IntentRow] = field(default_factory=dict)
    interrupts: dict[str, bytes] = field(default_factory=dict)

    @property
    def head(self) -> StateRow | None:
        """The newest version."""
        return self.states[-1] if self.states else None


@dataclass
class MemoryData:
    """All threads, and which of them a message id belongs to."""

    threads: dict[str, ThreadRow] = field(default_factory=dict)
    message_threads: dict[str, str] = field(default_factory=dict)
    state_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    clock: Clock = field(default_factory=Clock)

    def delete(self, thread_id: str) -> bool:
        """Delete a thread with all that is its own; false if there is none."""
        thread = self.threads.pop(thread_id, None)
        if thread is None:
            return False
        for message_id in thread.messages:
            del self.message_threads[message_id]
        return True


def head_of(thread_id: str, thread: ThreadRow, row: StateRow | None, *, with_fields: bool) -> Head:
    """A ``Head`` from the row of a version."""
    return Head(
        thread_id=thread_id,
        user_id=thread.user_id,
        version=row.version if row else 0,
        state_id=row.state_id if row else 0,
        fields=dict(row.fields) if row and with_fields else None,
        origin=origin_of(load_json(row.meta)) if row else None,
    )


def dump_message(message: MessageRow, first: bytes | None) -> bytes:
    """A message as it is kept. Of one that is there already only what was said changes, as in Postgres."""
    said: dict[str, Json] = {
        "content": message.content,
        "reasoning": message.reasoning,
        "usages": message.usages,
    }
    if first is not None:
        return dump_json({**load_json(first), **said})
    return dump_json(
        {
            "message_id": message.message_id,
            "role": message.role,
            "tool_calls": message.tool_calls,
            "total_tokens": message.total_tokens,
            "meta": message.meta,
            **said,
        }
    )
