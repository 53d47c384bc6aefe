"""What the conformance tests write, with defaults, so that a test names only what it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from ..state.encoding import dump_json, load_json
from ..storage.contract import Commit, Committed, Head, Intent, LedgerEntry, MessageRow, Origin, Store

THREAD, USER = "thread-1", "user-1"


class OpenStore(Protocol):
    """Opens one more handle on the test's database."""

    async def __call__(self, *, state_history_limit: int = ..., enforce_user_isolation: bool = ...) -> Store:
        """``options`` as in ``store_conformance``."""
        ...


def origin(commit_id: str, *, run_id: str = "run-1", position: Any = None, config: Any = None) -> Origin:
    """Who commits."""
    return Origin(run_id=run_id, commit_id=commit_id, position=position or {"step": 1}, config=config or {})


def message(message_id: str, text: str = "hi", **values: Any) -> MessageRow:
    """A message."""
    content = [{"type": "text", "text": text, "annotations": []}]
    return MessageRow(**{"message_id": message_id, "role": "user", "content": content, **values})


def entry(ledger_key: str, value: Any = "done", **values: Any) -> LedgerEntry:
    """A finished call."""
    return LedgerEntry(ledger_key=ledger_key, envelope={"__kind__": "raw", "value": value}, **values)


def intent(ledger_key: str, owner: str, lease: float = 30.0, **values: Any) -> Intent:
    """An attempt at a call; ``lease`` in seconds."""
    return Intent(ledger_key=ledger_key, owner=owner, lease=timedelta(seconds=lease), **values)


async def commit(
    store: Store,
    expected_version: int,
    fields: Mapping[str, Any] | None = None,
    *,
    by: Origin | None = None,
    thread_id: str = THREAD,
    user_id: str = USER,
    messages: Sequence[MessageRow] = (),
    results: Sequence[LedgerEntry] = (),
    **values: Any,
) -> Committed:
    """Commit ``fields``, given as values, on top of ``expected_version``."""
    encoded = {name: dump_json(value) for name, value in (fields or {"n": expected_version + 1}).items()}
    return await store.commit(
        Commit(
            thread_id=thread_id,
            user_id=user_id,
            expected_version=expected_version,
            fields=encoded,
            origin=by,
            messages=messages,
            results=results,
            **values,
        )
    )


async def chain(store: Store, versions: int, *, thread_id: str = THREAD, user_id: str = USER) -> list[Committed]:
    """Commit ``versions`` times."""
    return [await commit(store, n, thread_id=thread_id, user_id=user_id) for n in range(versions)]


def decoded(head: Head | None) -> dict[str, Any]:
    """The state of ``head`` as values."""
    assert head is not None
    assert head.fields is not None
    return {name: load_json(data) for name, data in head.fields.items()}


async def state_of(store: Store, thread_id: str = THREAD) -> dict[str, Any]:
    """The newest state as values."""
    return decoded(await store.load_head(thread_id, None))


async def message_ids(store: Store, thread_id: str = THREAD) -> list[str]:
    """The ids of the thread's messages, in order."""
    return [row.message_id for row in await store.list_messages(thread_id, None, limit=1000)]
