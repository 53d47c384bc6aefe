"""What every store promises. One conformance suite (``tests/conformance``) holds them all to it.

Two records must never be wrong: the versioned state of a thread, and the ledger of its tool calls.
Stores deal in encoded values only; what a state or an envelope means is not their business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from ..state.encoding import Fields

Json = Any
"""A JSON-native value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which commit wrote a state row: what makes commits idempotent.

    ``run_id`` with ``commit_id`` names the commit; ``position`` is what it returned; ``config`` is the
    run's configuration, kept here so that no activity needs to carry it.
    """

    run_id: str
    commit_id: str
    position: Json
    config: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest state of a thread.

    ``version`` counts from 1; 0 is a thread without a state. ``state_id`` names the row and never
    repeats, not even for a deleted thread that is made again. ``fields`` is ``None`` where the caller
    already has that row. ``origin`` is ``None`` where the row was written by 10xGraph or an operator.
    """

    thread_id: str
    user_id: str
    version: int
    state_id: int
    fields: Fields | None
    origin: Origin | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One row of ``messages``, encoded."""

    message_id: str
    role: str
    content: Json
    tool_calls: Json = None
    reasoning: str | None = None
    total_tokens: int = 0
    usages: Json = field(default_factory=dict)
    meta: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One finished tool call. ``envelope`` is ``{"__kind__": "message" | "raw", "value": ..., "state"?}``."""

    ledger_key: str
    envelope: Json
    tool: str = ""
    status: str = "finished"
    """``finished``, ``failed``, ``timeout`` or ``cancelled``."""
    attempt: int = 1
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One step's outcome: state, messages and ledger rows that become visible together or not at all.

    ``results`` are written like any ledger record: a call that already has one keeps it. A thread that
    does not exist is created only by a commit with ``expected_version`` 0. ``expected_state_id`` names the very row
    that the commit started from: a deleted thread that is made again restarts its versions, but not its rows.
    ``base`` is what that row holds, where it is known: what ``fields`` has in common with it need not be sent.
    """

    thread_id: str
    user_id: str
    expected_version: int
    fields: Fields
    origin: Origin | None
    messages: Sequence[MessageRow] = ()
    results: Sequence[LedgerEntry] = ()
    meta: Mapping[str, Json] = field(default_factory=dict)
    """The user's own ``meta``, kept beside ours in ``states.meta``."""
    expected_state_id: int | None = None
    """``None`` compares versions alone."""
    base: Fields | None = None
    thread_name: str | None = None
    thread_meta: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """``replayed``: this very commit was already there, and nothing was written now."""

    state_id: int
    version: int
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """An attempt that is about to run a call. ``owner`` is unique to the attempt."""

    ledger_key: str
    owner: str
    lease: timedelta
    tool: str = ""
    attempt: int = 1
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """Run the call now."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The call finished before."""

    envelope: Json


@dataclass(frozen=True, slots=True)
class Held:
    """Another attempt is running the call; its lease ends in ``remaining``."""

    worker: str
    attempt: int
    remaining: timedelta


@dataclass(frozen=True, slots=True)
class InDoubt:
    """An attempt started the call and was lost: whether it had its effect is unknown."""

    worker: str
    attempt: int
    started_at: datetime


Claim = Claimed | Recorded | Held | InDoubt


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call as an operator sees it. ``status``: a ``LedgerEntry`` status, ``running`` or ``in_doubt``."""

    ledger_key: str
    tool: str
    status: str
    attempt: int
    worker: str
    replays: int
    at: datetime
    envelope: Json | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadInfo:
    """One line of a list of threads. ``status`` is ``execution_meta.status`` of the head, or empty."""

    thread_id: str
    user_id: str
    name: str
    version: int
    status: str
    created_at: datetime
    updated_at: datetime
    meta: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionInfo:
    """One kept version of a thread's state."""

    version: int
    state_id: int
    created_at: datetime
    origin: Origin | None
    size_bytes: int


class LedgerTransaction(Protocol):
    """An open transaction on the ledger's database."""

    @property
    def connection(self) -> Any:
        """The driver's connection (asyncpg, aiosqlite), for the tool's own statements."""
        ...

    async def record(self, thread_id: str, entry: LedgerEntry) -> Json | None:
        """As ``ToolLedger.record``, inside this transaction."""
        ...


class HeadMoved(Exception):
    """The thread's head is not what a commit expected; carries the head (without its state)."""

    def __init__(self, head: Head) -> None:
        super().__init__(f"thread {head.thread_id!r} is at version {head.version}")
        self.head = head


class MessageIdTaken(Exception):
    """Messages of other threads already have these ids; nothing was written."""

    def __init__(self, message_ids: frozenset[str]) -> None:
        super().__init__(f"message ids of other threads: {', '.join(sorted(message_ids))}")
        self.message_ids = message_ids


class ThreadStore(Protocol):
    """The versioned state of threads."""

    async def load_head(self, thread_id: str, user_id: str | None, *, known_state_id: int | None = None) -> Head | None:
        """The newest state, or ``None`` where the thread does not exist. Never writes.

        Args:
            thread_id: At most 255 characters.
            user_id: Where isolation is on, the threads of other users do not exist for this one, here and in every
                other reading; ``None`` asks as operator.
            known_state_id: A row that the caller has; its ``fields`` are then left out.

        Raises:
            StoreUnavailable: The database could not be reached; safe to repeat.
        """
        ...

    async def commit(self, commit: Commit) -> Committed:
        """Compare-and-swap: write ``expected_version + 1`` under the thread's row lock, or nothing.

        Idempotent for one ``Origin``: a commit that is already the head is reported as ``replayed``.

        Raises:
            HeadMoved: The head is another version than expected, and not this commit.
            MessageIdTaken: A message id is used by another thread.
            ForbiddenError: The thread's id is another user's.
            StoreUnavailable: Unknown whether it was written; safe to repeat.
            StoreError: The database refuses the values.
        """
        ...


class ToolLedger(Protocol):
    """The record of finished tool calls, one row per ``message_id:tool_call_id`` of a thread."""

    async def lookup(self, thread_id: str, ledger_keys: Sequence[str]) -> dict[str, Json]:
        """The recorded envelopes by key, as stored: the caller judges whether they are well formed.

        Raises:
            StoreUnavailable: The database could not be reached.
        """
        ...

    async def record(self, thread_id: str, entry: LedgerEntry) -> Json | None:
        """Record a finished call once.

        Returns:
            ``None`` if this record was written, else the envelope that was there first and stays.

        Raises:
            StoreUnavailable: Unknown whether it was written; safe to repeat.
            StoreError: The database refuses the value.
        """
        ...

    async def load_call(self, thread_id: str, message_id: str, ledger_key: str) -> tuple[Json, Json | None]:
        """The message's ``tool_calls`` (``None``: no such message) and the recorded envelope."""
        ...

    async def claim(self, thread_id: str, intent: Intent) -> Claim:
        """Reserve the right to run a call, for tools whose doubt matters. Atomic.

        Returns:
            ``Claimed`` to run it now; ``Recorded`` if a result exists; ``Held`` while another attempt's
            lease is alive; ``InDoubt`` if an earlier attempt's lease ran out without a record: it may or
            may not have happened. Idempotent for one ``intent.owner``.
        """
        ...

    async def take_over(self, thread_id: str, intent: Intent) -> Claim:
        """As ``claim``, but an attempt in doubt is replaced: somebody decided to run the call again."""
        ...

    async def renew(self, thread_id: str, ledger_key: str, owner: str, lease: timedelta) -> bool:
        """Extend a live or expired claim of ``owner``; false if another attempt took it over."""
        ...

    async def release(self, thread_id: str, ledger_key: str, owner: str) -> None:
        """Give up the claim of ``owner``: it knows that the call is to be made again."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[LedgerTransaction]:
        """A transaction of the ledger's own database, in which a tool's effect and its record commit
        together. It commits when the block ends without an error, else rolls back.

        Raises:
            StoreError: This store has no database that a tool could share.
        """
        ...

    async def calls(self, thread_id: str) -> list[CallRecord]:
        """The thread's recorded and claimed calls, oldest first."""
        ...

    async def put_interrupt(self, thread_id: str, interrupt_id: str, request: Json) -> None:
        """Keep what an interrupt asks; the first request under an id stays."""
        ...

    async def load_interrupts(self, thread_id: str, interrupt_ids: Sequence[str]) -> dict[str, Json]:
        """The requests that are there, by id."""
        ...

    async def count_replay(self, thread_id: str, ledger_key: str) -> None:
        """Note that a recorded result was used again."""
        ...


class ThreadAdmin(Protocol):
    """What operators do with threads. ``user_id`` ``None`` asks as operator, past isolation."""

    async def list_threads(
        self,
        *,
        user_id: str | None = None,
        limit: int = 50,
        before: datetime | None = None,
        before_thread: str | None = None,
    ) -> list[ThreadInfo]:
        """Threads, most recently updated first, those of one time by their id.

        Args:
            user_id: Only this user's.
            limit: At most so many.
            before: Only those updated before; for the next page, the ``updated_at`` of the last one seen ...
            before_thread: ... and its ``thread_id``, so that none of the same time is missed.
        """
        ...

    async def list_versions(self, thread_id: str, user_id: str | None) -> list[VersionInfo]:
        """The kept versions, newest first."""
        ...

    async def load_version(self, thread_id: str, user_id: str | None, version: int) -> Head | None:
        """The state at a kept version, or ``None``."""
        ...

    async def list_messages(
        self, thread_id: str, user_id: str | None, *, limit: int = 100, after: str | None = None
    ) -> list[MessageRow]:
        """Messages in the order they were written; ``after`` is the id of the last one seen."""
        ...

    async def delete_thread(self, thread_id: str, user_id: str | None) -> bool:
        """Delete a thread with its states, messages, ledger and claims; false if there was none."""
        ...

    async def purge(self, *, older_than: datetime, batch: int = 100) -> int:
        """Delete up to ``batch`` threads not updated since ``older_than``; how many were deleted."""
        ...


class Store(ThreadStore, ToolLedger, ThreadAdmin, Protocol):
    """State and ledger in one database, so that a commit can span both."""

    async def setup(self) -> None:
        """Create or migrate the schema. Idempotent; safe when many workers do it at once.

        Raises:
            SchemaError: The schema is newer than this code.
        """
        ...

    async def check(self) -> None:
        """Verify that the store is reachable and its schema is the one this code needs.

        Raises:
            StoreUnavailable, SchemaError: With the remedy.
        """
        ...

    async def close(self) -> None:
        """Release what this store opened; a pool that was passed in stays open."""
        ...
