"""Reading and committing a thread's state as one run does it: cached, fast-forwarding, idempotent."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import StaleStateError
from ..faults import Faults
from ..state import AgentState, Message
from ..state.encoding import Fields, check_fields, decode_state, encode_state
from ..telemetry import Metrics
from ..tools.identity import reidentified
from ..wire import Position, RunRef
from .contract import Commit, HeadMoved, LedgerEntry, MessageIdTaken, MessageRow, Origin, Store

S = TypeVar("S", bound=AgentState)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A state as it was committed. Version 0 is a thread that has none yet."""

    version: int = 0
    state_id: int = 0
    fields: Fields = field(default_factory=dict)
    origin: Origin | None = None

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the run that committed it."""
        return self.origin.config if self.origin else {}

    def decode(self, cls: type[S]) -> S:
        """A fresh state of class ``cls``; it shares nothing with any other copy."""
        return decode_state(cls, self.fields)


class StateCache:
    """The newest snapshots of this process by thread, bounded in bytes; least recently used go first.

    An entry counts only for the row that it was made of, so a wrong entry costs time, never correctness.
    """

    def __init__(self, max_bytes: int = 256 * 1024 * 1024) -> None:
        self._entries: OrderedDict[str, tuple[Snapshot, int]] = OrderedDict()
        self._max_bytes = max_bytes
        self._bytes = 0

    def get(self, thread_id: str) -> Snapshot | None:
        """The snapshot of ``thread_id`` that was put last, if it is still kept."""
        entry = self._entries.get(thread_id)
        if entry is None:
            return None
        self._entries.move_to_end(thread_id)
        return entry[0]

    def put(self, thread_id: str, snapshot: Snapshot) -> None:
        """Keep ``snapshot`` instead of what was kept for its thread."""
        self.drop(thread_id)
        size = sum(map(len, snapshot.fields.values()))
        self._entries[thread_id] = (snapshot, size)
        self._bytes += size
        while self._bytes > self._max_bytes and self._entries:
            _, (_, dropped) = self._entries.popitem(last=False)
            self._bytes -= dropped

    def drop(self, thread_id: str) -> None:
        """Forget a thread."""
        _, size = self._entries.pop(thread_id, (None, 0))
        self._bytes -= size


class ThreadStates:
    """The states of threads as the activities of a run see them."""

    def __init__(self, store: Store, *, cache: StateCache, metrics: Metrics, faults: Faults | None = None) -> None:
        self._store = store
        self._faults = faults or Faults()
        self._cache = cache
        self._metrics = metrics

    async def head(self, run: RunRef) -> Snapshot | None:
        """The newest state, or ``None`` where the thread does not exist."""
        cached = self._cache.get(run.thread_id)
        head = await self._store.load_head(
            run.thread_id, run.user_id, known_state_id=cached.state_id if cached else None
        )
        if head is None:
            self._cache.drop(run.thread_id)
            return None
        if head.fields is None and cached is not None and head.version:
            self._metrics.cache_hits.add(1)
            return cached
        self._metrics.cache_misses.add(1)
        snapshot = Snapshot(version=head.version, state_id=head.state_id, fields=head.fields or {}, origin=head.origin)
        self._cache.put(run.thread_id, snapshot)
        return snapshot

    async def at(self, run: RunRef, version: int, *, first_attempt: bool = False) -> Snapshot | Position:
        """The state ``version`` if it is the head; if this very run went further, where it stands now.

        The latter is how a lost reply, a duplicate attempt and a reset pass over finished steps. A
        ``first_attempt`` of a run that was never reset has nothing to pass over: what this process committed last
        is taken for the head without asking, and the commit finds out if it is not.

        Raises:
            StaleStateError: Another execution moved the thread.
        """
        cached = self._cache.get(run.thread_id) if first_attempt else None
        if cached is not None and cached.version == version and cached.origin and cached.origin.run_id == run.run_id:
            self._metrics.cache_hits.add(1)
            return cached
        head = await self.head(run)
        if head is not None and head.version == version:
            return head
        return self._forward(run, version, head.version if head else 0, head.origin if head else None)

    async def commit(
        self,
        run: RunRef,
        base: Snapshot,
        state: AgentState,
        position: Position,
        *,
        step: int,
        node: str,
        kind: str,
        config: Mapping[str, Any],
        results: Sequence[LedgerEntry] = (),
        known_ids: frozenset[str] = frozenset(),
    ) -> Position:
        """Write ``state`` as the version after ``base``, with the messages that are not in ``known_ids``.

        ``step``, ``node`` and ``kind`` identify the commit within its run.

        Returns:
            ``position``; or, where this commit or a later one of the same run was there already, its own.

        Raises:
            StaleStateError: Another execution moved the thread; nothing was written.
            EncodingError: The state holds what cannot be stored; names the field.
        """
        while True:
            origin = Origin(
                run_id=run.run_id,
                commit_id=f"{step}/{node}/{kind}",
                position=position.model_dump(mode="json"),
                config=dict(config),
            )
            encoded = encode_state(state)
            check_fields(type(state), {name: data for name, data in encoded.items() if data != base.fields.get(name)})
            fields = {**base.fields, **encoded}
            self._metrics.state_bytes.record(sum(map(len, fields.values())))
            await self._faults.reach("commit.started", node)
            try:
                committed = await self._store.commit(
                    Commit(
                        thread_id=run.thread_id,
                        user_id=run.user_id,
                        expected_version=base.version,
                        expected_state_id=base.state_id,
                        fields=fields,
                        origin=origin,
                        messages=[message_row(m) for m in state.context if m.message_id not in known_ids],
                        results=results,
                        meta=_mapping(config.get("meta")),
                        thread_name=_text(config.get("thread_name")),
                        thread_meta=_mapping(config.get("thread_meta")),
                    )
                )
            except MessageIdTaken as taken:
                position = _reidentify(run.thread_id, state, position, taken.message_ids)
                continue
            except HeadMoved as moved:
                self._cache.drop(run.thread_id)
                return self._forward(run, base.version, moved.head.version, moved.head.origin)
            await self._faults.reach("commit.done", node)
            if committed.replayed:
                self._metrics.commit_replays.add(1)
                self._cache.drop(run.thread_id)
                return await self._replayed(run, base.version)
            self._metrics.commits.add(1)
            self._cache.put(
                run.thread_id,
                Snapshot(version=committed.version, state_id=committed.state_id, fields=fields, origin=origin),
            )
            return position

    async def _replayed(self, run: RunRef, version: int) -> Position:
        """The position that this run's own, earlier commit returned."""
        head = await self.head(run)
        return self._forward(run, version, head.version if head else 0, head.origin if head else None)

    def _forward(self, run: RunRef, expected: int, current: int, origin: Origin | None) -> Position:
        if origin is not None and origin.run_id == run.run_id and current > expected:
            logger.info(
                "thread %s: version %d was reached by this run before; going on from %d",
                run.thread_id,
                expected + 1,
                current,
            )
            self._metrics.commit_replays.add(1)
            return Position.model_validate(origin.position)
        self._metrics.stale_commits.add(1)
        raise StaleStateError(run.thread_id, expected_version=expected, current_version=current)


def message_row(message: Message) -> MessageRow:
    """A message as its row."""
    data = message.model_dump(mode="json", include={"content", "usages", "metadata", "tools_calls"})
    return MessageRow(
        message_id=message.message_id,
        role=message.role,
        content=data["content"],
        tool_calls=data["tools_calls"],
        reasoning=message.reasoning,
        total_tokens=message.usages.total_tokens if message.usages else 0,
        usages=data["usages"] or {},
        meta=data["metadata"],
    )


def _reidentify(thread_id: str, state: AgentState, position: Position, taken: frozenset[str]) -> Position:
    """Give new ids to messages whose id another thread already has: none is lost, none is overwritten."""
    for message in state.context:
        if message.message_id in taken:
            old, message.message_id = message.message_id, reidentified(thread_id, message.message_id)
            logger.warning("message id %s belongs to another thread; here the message is %s", old, message.message_id)
            if position.message_id == old:
                position = position.model_copy(update={"message_id": message.message_id})
    return position


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return str(value)[:255] if value else None
