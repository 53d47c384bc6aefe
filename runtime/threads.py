"""Threads from outside a run: reading one, forking it, editing it, deleting it.

A run finds its state by version and row, so a thread that is edited or deleted under an open run ends that run with
``STORAGE_CONFLICT_001``; nothing of the edit is lost.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from .errors import ForbiddenError, InputError, StaleStateError, problems
from .graph.advance import open_calls
from .interrupt import InterruptRequest, open_requests
from .state import AgentState, ExecutionStatus, Message
from .state.encoding import check_fields, decode_state, dump_json, encode_state
from .storage.contract import Commit, Committed, Head, HeadMoved, LedgerEntry, MessageIdTaken, Origin, Store
from .storage.redis_cache import RedisCache
from .storage.thread_states import message_row
from .tools.identity import ledger_key, reidentified, settle_identity

_PAGE = 100


async def thread_state(
    store: Store,
    thread_id: str,
    state: type[AgentState] = AgentState,
    *,
    user_id: str | None = None,
    version: int | None = None,
) -> Any:
    """The state of a thread, as an instance of ``state``: the newest, or a kept ``version``.

    Args:
        store: An open store.
        thread_id: The thread.
        state: The graph's state class; plain ``AgentState`` reads any thread's messages.
        user_id: Who asks; ``None`` asks as operator.
        version: Counts from 1; old ones are pruned.

    Raises:
        InputError: There is no such thread or version, or it is another user's.
    """
    return decode_state(state, (await _load(store, thread_id, user_id, version)).fields or {})


async def fork_thread(
    store: Store, thread_id: str, new_thread_id: str, *, user_id: str | None = None, version: int | None = None
) -> Committed:
    """Copy a thread as it is, or was at ``version``, into a new one of the same user; the old one stays as it is.

    Messages get new ids, for an id belongs to one thread. Where the copied step has open tool calls, those that the
    ledger has a result of keep it: they have happened, and do not run again in the fork.

    Raises:
        InputError: There is no such thread or version, or there is a thread ``new_thread_id`` already.
    """
    head = await _load(store, thread_id, user_id, version)
    state = decode_state(AgentState, head.fields or {})
    asked, calls = open_calls(state)
    keys = {key: call["id"] for call in calls if asked and (key := ledger_key(asked.message_id, call["id"]))}
    for message in state.context:
        message.message_id = reidentified(new_thread_id, message.message_id)
    records = {record.ledger_key: record for record in await store.calls(thread_id)} if keys else {}
    results = [
        LedgerEntry(
            ledger_key=ledger_key(asked.message_id, call_id) or "",
            envelope=records[key].envelope,
            tool=records[key].tool,
            status=records[key].status,
            attempt=records[key].attempt,
            worker=records[key].worker,
        )
        for key, call_id in keys.items()
        if asked and key in records and records[key].envelope is not None
    ]
    state.execution_meta.thread_id = new_thread_id
    commit = Commit(
        thread_id=new_thread_id,
        user_id=head.user_id,
        expected_version=0,
        fields={**(head.fields or {}), **encode_state(state)},
        origin=_by_hand("fork", head),
        messages=[message_row(message) for message in state.context],
        results=results,
        thread_meta={"forked_from": {"thread_id": thread_id, "version": head.version}},
    )
    try:
        return await store.commit(commit)
    except (HeadMoved, ForbiddenError) as taken:
        raise InputError(f"there is a thread {new_thread_id!r} already; give the fork another id") from taken


async def edit_thread(
    store: Store,
    thread_id: str,
    changes: Mapping[str, Any],
    *,
    version: int,
    state: type[AgentState] = AgentState,
    user_id: str | None = None,
    cache: RedisCache | None = None,
) -> Committed:
    """Replace fields of a thread's state, past their reducers, as its next version.

    Args:
        store: An open store.
        thread_id: The thread.
        changes: New values by field. ``context`` is the whole conversation; messages without an id get one.
        version: What the edit was made from. If the thread has moved on since, nothing is written.
        state: The graph's state class. A field that it does not have is replaced as it is, if the thread has it.
        user_id: Who asks; ``None`` asks as operator.
        cache: Cleared of the thread.

    Raises:
        InputError: There is no such thread or field, or a value does not fit; names it.
        StaleStateError: The thread is at another version.
    """
    head = await _load(store, thread_id, user_id, None)
    if head.version != version:
        raise StaleStateError(thread_id, expected_version=version, current_version=head.version)
    stored = head.fields or {}
    known = {name: value for name, value in changes.items() if name in state.model_fields}
    unknown = sorted(changes.keys() - known.keys() - stored.keys())
    if unknown or not changes:
        names = ", ".join(sorted({*stored, *state.model_fields} - {"__state_meta__"}))
        what = f"has no field {', '.join(unknown)}" if unknown else "is to be changed, but no field is given"
        raise InputError(f"thread {thread_id!r} {what}; its fields are {names}")
    current = decode_state(state, stored)
    said = {message.message_id for message in current.context}
    try:
        current.set_fields(known)
    except ValidationError as exc:
        raise InputError(f"the edit of thread {thread_id!r} does not fit: {problems(exc)}") from None
    for message in current.context:
        if message.message_id not in said:
            settle_identity(message, thread_id)
    encoded = encode_state(current)
    check_fields(state, {name: encoded[name] for name in known})
    raw = {name: dump_json(value) for name, value in changes.items() if name not in known}
    commit = Commit(
        thread_id=thread_id,
        user_id=head.user_id,
        expected_version=version,
        expected_state_id=head.state_id,
        fields={**stored, **encoded, **raw},
        origin=_by_hand("edit", head),
        messages=[message_row(message) for message in _changed(current, decode_state(state, stored))],
    )
    try:
        committed = await store.commit(commit)
    except HeadMoved as moved:
        current_version = moved.head.version
        raise StaleStateError(thread_id, expected_version=version, current_version=current_version) from moved
    except MessageIdTaken as taken:
        raise InputError(f"{taken}; leave the ids of new messages out") from None
    if cache is not None:
        await cache.drop(thread_id, head.user_id)
    return committed


@dataclass(frozen=True)
class OpenInterrupt:
    """A question that a thread waits for an answer to."""

    thread_id: str
    user_id: str
    since: datetime
    request: InterruptRequest


async def open_interrupts(store: Store, *, user_id: str | None = None) -> AsyncIterator[OpenInterrupt]:
    """What threads wait for, those that were updated last first: all, or those of one user."""
    before, last = None, None
    while page := await store.list_threads(user_id=user_id, limit=_PAGE, before=before, before_thread=last):
        for info in page:
            if info.status != ExecutionStatus.INTERRUPTED_BEFORE:
                continue
            head = await store.load_head(info.thread_id, user_id)
            if head is not None and head.fields is not None:
                for request in open_requests(decode_state(AgentState, head.fields)):
                    yield OpenInterrupt(info.thread_id, info.user_id, info.updated_at, request)
        before, last = page[-1].updated_at, page[-1].thread_id


async def delete_thread(
    store: Store, thread_id: str, *, user_id: str | None = None, cache: RedisCache | None = None
) -> bool:
    """Delete a thread with its states, messages, ledger and claims, and its entry in the ``cache``.

    Returns:
        Whether there was one that is this user's.
    """
    head = await store.load_head(thread_id, user_id)
    deleted = await store.delete_thread(thread_id, user_id)
    if cache is not None and head is not None:
        await cache.drop(thread_id, head.user_id)
    return deleted


def _by_hand(what: str, head: Head) -> Origin | None:
    """The mark of a commit that no run made. What is 10xGraph's stays so: see how a run begins on it."""
    if head.origin is None:
        return None
    return Origin(run_id="", commit_id=f"{what}/{uuid.uuid4()}", position={}, config=head.origin.config)


def _changed(state: AgentState, before: AgentState) -> list[Message]:
    old = {message.message_id: message for message in before.context}
    return [message for message in state.context if old.get(message.message_id) != message]


async def _load(store: Store, thread_id: str, user_id: str | None, version: int | None) -> Head:
    if version is None:
        head = await store.load_head(thread_id, user_id)
    else:
        head = await store.load_version(thread_id, user_id, version)
    if head is None or head.fields is None:
        raise InputError(f"thread {thread_id!r} has no state" + (f" of version {version}" if version else ""))
    return head
