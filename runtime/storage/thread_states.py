"""Reading and committing a thread's state as one run does it: cached, fast-forwarding, idempotent."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import StaleStateError
from ..faults import Faults
from ..limits import RunConfig
from ..state import AgentState, Message
from ..state.encoding import check_fields, encode_state
from ..telemetry import Metrics
from ..tools.identity import reidentified
from ..wire import Position, RunRef
from .contract import Commit, Head, HeadMoved, LedgerEntry, MessageIdTaken, MessageRow, Origin, Store
from .redis_cache import RedisCache
from .snapshot import Snapshot, StateCache, commit_name

logger = logging.getLogger(__name__)


class ThreadStates:
    """The states of threads as the activities of a run see them.

    Args:
        store: What is true.
        cache: This process's snapshots.
        shared: All workers' snapshots.
    """

    def __init__(
        self,
        store: Store,
        *,
        cache: StateCache,
        metrics: Metrics,
        shared: RedisCache | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._store = store
        self._faults = faults or Faults()
        self._cache = cache
        self._shared = shared
        self._metrics = metrics
        self._lossy: set[str] = set()
        """Runs whose unsaved state was lost once: from then on every step of theirs is saved."""

    @property
    def can_wait(self) -> bool:
        """Whether there is a cache that may hold what is not saved yet."""
        return self._shared is not None

    async def head(self, run: RunRef) -> Snapshot | None:
        """The newest state, or ``None`` where the thread does not exist."""
        known = self._cache.get(run.thread_id)
        if known is None and self._shared is not None:
            known = await self._shared.get(run.thread_id, run.user_id)
        head = await self._store.load_head(run.thread_id, run.user_id, known_state_id=known.state_id if known else None)
        if head is None:
            await self._forget(run)
            return None
        if known is not None and head.version and known.goes_on_from(head):
            self._metrics.cache_hits.add(1)
            snapshot = await self._newest(run, head, known)
            self._cache.put(run.thread_id, snapshot)
            return snapshot
        self._metrics.cache_misses.add(1)
        if known is not None:
            await self._forget(run)
            if head.fields is None and head.version:  # another row under a known id: the database was put back
                head = await self._store.load_head(run.thread_id, run.user_id)
                if head is None:
                    return None
        snapshot = await self._newest(run, head, Snapshot.of(head))
        self._keep(run, snapshot)
        return snapshot

    async def _newest(self, run: RunRef, head: Head, snapshot: Snapshot) -> Snapshot:
        """``snapshot``, or what another worker committed on top of it to the caches only."""
        if self._shared is None or RunConfig.of(snapshot.config).durable:
            return snapshot
        other = await self._shared.get(run.thread_id, run.user_id)
        newer = other is not None and other.goes_on_from(head) and other.unsaved > snapshot.unsaved
        return other if other is not None and newer else snapshot

    async def at(
        self, run: RunRef, version: int, unsaved: int = 0, *, first_attempt: bool = False
    ) -> Snapshot | Position:
        """The state ``version`` if it is the head; if this very run is elsewhere, where it stands now.

        The latter is how a lost reply, a duplicate attempt and a reset pass over finished steps, and how a run whose
        ``unsaved`` steps were lost with the cache goes back to its last saved one. A ``first_attempt`` of a run that
        was never reset has nothing to pass over: what this process committed last is taken for the head without
        asking, and the commit finds out if it is not.

        Raises:
            StaleStateError: Another execution moved the thread.
        """
        cached = self._cache.get(run.thread_id) if first_attempt else None
        if (
            cached is not None
            and (cached.version, cached.unsaved) == (version, unsaved)
            and cached.origin
            and cached.origin.run_id == run.run_id
        ):
            self._metrics.cache_hits.add(1)
            return cached
        head = await self.head(run) or Snapshot()
        if (head.version, head.unsaved) == (version, unsaved):
            return head
        return self._forward(run, (version, unsaved), head)

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

        Where the run's ``durable_checkpoint_every_step`` is off, a step in the middle of it goes to the caches only.

        Returns:
            ``position`` with its version; or, where this commit or a later one of the same run was there already, its
            own.

        Raises:
            StaleStateError: Another execution moved the thread; nothing was written.
            EncodingError: The state holds what cannot be stored; names the field.
        """
        while True:
            fields = {**base.fields, **_encoded(state, base)}
            self._metrics.state_bytes.record(sum(map(len, fields.values())))
            await self._faults.reach("commit.started", node)
            if self._may_wait(run, position, kind, config) and not results:
                waiting = position.model_copy(update={"version": base.version, "unsaved": base.unsaved + 1})
                origin = _origin(run, waiting, f"{step}/{node}/{kind}", config)
                unsaved = {m.message_id for m in state.context if m.message_id not in known_ids}
                snapshot = replace(
                    base,
                    unsaved=waiting.unsaved,
                    unsaved_messages=base.unsaved_messages | unsaved,
                    fields=fields,
                    origin=origin,
                )
                if await self._put_unsaved(run, snapshot):
                    await self._faults.reach("commit.done", node)
                    return waiting
            origin = _origin(run, position, f"{step}/{node}/{kind}", config)
            saved_ids = known_ids - base.unsaved_messages
            try:
                committed = await self._store.commit(
                    Commit(
                        thread_id=run.thread_id,
                        user_id=run.user_id,
                        expected_version=base.version,
                        expected_state_id=base.state_id,
                        base=base.fields if base.state_id and not base.unsaved else None,
                        fields=fields,
                        origin=origin,
                        messages=[message_row(m) for m in state.context if m.message_id not in saved_ids],
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
                await self._forget(run)
                return self._forward(run, (base.version, base.unsaved), Snapshot.of(moved.head))
            await self._faults.reach("commit.done", node)
            if committed.replayed:
                self._metrics.commit_replays.add(1)
                self._cache.drop(run.thread_id)
                return self._forward(run, (base.version, base.unsaved), await self.head(run) or Snapshot())
            self._metrics.commits.add(1)
            snapshot = Snapshot(
                version=committed.version,
                state_id=committed.state_id,
                row=commit_name(origin),
                fields=fields,
                origin=origin,
            )
            self._keep(run, snapshot)
            return position

    def _may_wait(self, run: RunRef, position: Position, kind: str, config: Mapping[str, Any]) -> bool:
        """Whether a commit may stay in the caches: in the middle of a run that asked for it."""
        if not self.can_wait or run.run_id in self._lossy or RunConfig.of(config).durable:
            return False
        return kind in ("node", "tools") and position.next in ("node", "tools") and not position.interrupts

    async def _put_unsaved(self, run: RunRef, snapshot: Snapshot) -> bool:
        assert self._shared is not None
        if not await self._shared.put(run.thread_id, run.user_id, snapshot):
            return False
        self._cache.put(run.thread_id, snapshot)
        return True

    def _keep(self, run: RunRef, snapshot: Snapshot) -> None:
        self._cache.put(run.thread_id, snapshot)
        if self._shared is not None:
            self._shared.put_soon(run.thread_id, run.user_id, snapshot)

    async def _forget(self, run: RunRef) -> None:
        self._cache.drop(run.thread_id)
        if self._shared is not None:
            await self._shared.drop(run.thread_id, run.user_id)

    def _forward(self, run: RunRef, expected: tuple[int, int], head: Snapshot) -> Position:
        """Where this run stands, if the head is its own commit."""
        origin, current = head.origin, (head.version, head.unsaved)
        if origin is not None and origin.run_id == run.run_id:
            if current > expected:
                logger.info("thread %s: this run has committed version %d before", run.thread_id, head.version)
                self._metrics.commit_replays.add(1)
                return Position.model_validate(origin.position)
            if head.version == expected[0]:
                logger.warning(
                    "thread %s: the caches lost %d steps that were not saved; the run goes on from version %d, and "
                    "saves every step from now on",
                    run.thread_id,
                    expected[1] - head.unsaved,
                    head.version,
                )
                self._metrics.cache_lost_steps.add(expected[1] - head.unsaved)
                self._lossy.add(run.run_id)
                return Position.model_validate(origin.position)
        self._metrics.stale_commits.add(1)
        raise StaleStateError(run.thread_id, expected_version=expected[0], current_version=head.version)


def _encoded(state: AgentState, base: Snapshot) -> dict[str, bytes]:
    """The state's fields, as far as they can be read again."""
    encoded = encode_state(state)
    check_fields(type(state), {name: data for name, data in encoded.items() if data != base.fields.get(name)})
    return encoded


def _origin(run: RunRef, position: Position, commit_id: str, config: Mapping[str, Any]) -> Origin:
    return Origin(
        run_id=run.run_id, commit_id=commit_id, position=position.model_dump(mode="json"), config=dict(config)
    )


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
