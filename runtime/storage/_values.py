"""What the stores share: checks of values, the marks of a commit, and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ..errors import StoreError
from ..state.encoding import clean_text
from .contract import Commit, Committed, Head, HeadMoved, Origin

META_KEY = "tenxgraph_temporal"
"""Our key inside ``states.meta``; the rest of that object is the user's."""

_MAX_ID = 255
_ROLES = frozenset({"user", "assistant", "system", "tool"})
_TICK = timedelta(microseconds=1)


class Clock:
    """The time in UTC. Each reading is later than the one before, so that it also tells an order."""

    def __init__(self) -> None:
        self._last = datetime.min.replace(tzinfo=UTC)

    def now(self) -> datetime:
        """The time, to the microsecond."""
        self._last = max(datetime.now(UTC), self._last + _TICK)
        return self._last


def origin_of(meta: Any) -> Origin | None:
    """Our part of a row's ``meta``, where a commit of ours wrote the row."""
    ours = (meta or {}).get(META_KEY)
    return Origin(**ours) if ours else None


def meta_of(commit: Commit) -> dict[str, Any]:
    """What ``states.meta`` holds for ``commit``."""
    meta = dict(commit.meta)
    if commit.origin:
        meta[META_KEY] = {
            "run_id": commit.origin.run_id,
            "commit_id": commit.origin.commit_id,
            "position": commit.origin.position,
            "config": commit.origin.config,
        }
    return meta


def name_of(commit: Commit) -> str:
    """The name of a thread that ``commit`` makes, as far as it fits its column."""
    return (commit.thread_name or f"Thread {commit.thread_id}")[:_MAX_ID]


def already_there(commit: Commit, head: Head | None) -> Committed:
    """The answer to a commit that does not fit ``head``: it *is* the head, or it lost.

    Raises:
        HeadMoved: Another commit made the head, or the thread is gone.
    """
    if head is None:
        head = Head(thread_id=commit.thread_id, user_id=commit.user_id, version=0, state_id=0, fields=None, origin=None)
    mine, theirs = commit.origin, head.origin
    if mine and theirs and (mine.run_id, mine.commit_id) == (theirs.run_id, theirs.commit_id):
        return Committed(state_id=head.state_id, version=head.version, replayed=True)
    raise HeadMoved(head)


def check_ids(**ids: str) -> None:
    """Refuse ids that Postgres would refuse, so that every store takes the same ones.

    Raises:
        StoreError: An id is too long, or holds what no database can; names it.
    """
    for name, value in ids.items():
        if len(value) > _MAX_ID:
            raise StoreError(f"{name} {value[:40]!r}... has {len(value)} characters; use at most {_MAX_ID}")
        if clean_text(value) != value:
            raise StoreError(f"{name} {value!r} holds a NUL or half a character; use plain text")


def check_commit(commit: Commit) -> None:
    """Refuse a commit that Postgres would refuse for its ids or roles.

    Raises:
        StoreError: Names the value.
    """
    check_ids(thread_id=commit.thread_id, user_id=commit.user_id, thread_name=name_of(commit))
    seen: set[str] = set()
    for message in commit.messages:
        check_ids(message_id=message.message_id)
        if message.role not in _ROLES:
            raise StoreError(f"message {message.message_id!r}: {message.role!r} is none of {', '.join(sorted(_ROLES))}")
        if message.message_id in seen:
            raise StoreError(f"thread {commit.thread_id!r}: one commit holds message id {message.message_id!r} twice")
        seen.add(message.message_id)
    for entry in commit.results:
        check_ids(ledger_key=entry.ledger_key)


def no_thread(thread_id: str) -> StoreError:
    """The error of a ledger row for a thread that is not there."""
    return StoreError(f"thread {thread_id!r} does not exist (any more); its ledger went with it")
