"""Thread states in Redis or Valkey, under 10xGraph's keys: they spare a worker the reading of a state from the store.

A cache is never believed. An entry counts only for the row that the store names, so whatever Redis does (it is down,
slow, full, emptied, or answers with somebody else's entry), the answer is the same, only slower.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from ..errors import SettingsError
from ..state.encoding import dump_json, join_fields, load_json, split_fields
from ..telemetry import Metrics
from .contract import Origin
from .snapshot import Snapshot

T = TypeVar("T")

logger = logging.getLogger(__name__)

TTL = 86_400
"""Seconds that an entry lives."""
DEADLINE = 0.25
"""Seconds that Redis has for an answer while a step waits for it."""
_WRITE_DEADLINE = 5.0
"""Seconds for writing an entry, which is mostly done in the background."""
_GATHERING = 0.05
"""Seconds that a state waits to be written: a run of quick steps replaces it meanwhile, and it is a cache."""
_CONNECTIONS = 20
_PATIENCE = 3
"""Failures in a row after which Redis is left alone for a while."""
_REST, _LONGEST_REST = 1.0, 30.0

_VERSION = "__checkpoint_version__"
_META = "__state_meta__"  # 10xGraph drops it on reading
_OURS = "tenxgraph_temporal"

# Never backwards: neither behind a newer version, nor behind a later step on the same one. Both are at the beginning of
# an entry of ours, the version is at the end of one of 10xGraph's; nothing is decoded for it.
_PUT = """
local head = redis.call('GETRANGE', KEYS[1], 0, 127)
local version, unsaved = string.match(head, '^{"__checkpoint_version__":(%d+),"__state_meta__":{"unsaved":(%d+)')
if not version then
    version = string.match(redis.call('GETRANGE', KEYS[1], -64, -1), '"__checkpoint_version__": *(%d+) *}$')
    unsaved = 0
end
version, unsaved = tonumber(version or -1), tonumber(unsaved)
local new_version, new_unsaved = tonumber(ARGV[2]), tonumber(ARGV[3])
if version > new_version or (version == new_version and unsaved > new_unsaved) then
    return 0
end
redis.call('SETEX', KEYS[1], ARGV[4], ARGV[1])
return 1
"""


class RedisCache:
    """The newest state of each thread, as any worker committed it.

    Args:
        client: Closed by ``close``.
        metrics: Faults are counted there.
        deadline: Seconds for an answer.
    """

    def __init__(self, client: Redis, *, metrics: Metrics, deadline: float = DEADLINE) -> None:
        self._client = client
        self._deadline = deadline
        self._put_script = client.register_script(_PUT)
        self._metrics = metrics
        self._failures = 0
        self._rest = _REST
        self._resting_until = 0.0
        self._pending: dict[tuple[str, str], Snapshot] = {}
        self._writing: asyncio.Task[None] | None = None

    @classmethod
    def open(cls, url: str, *, metrics: Metrics, deadline: float = DEADLINE) -> RedisCache:
        """A cache on ``redis://...``; connects on first use.

        Raises:
            SettingsError: The address is not one.
        """
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS,
                timeout=deadline,
                socket_timeout=_WRITE_DEADLINE,
                socket_connect_timeout=deadline,
                retry=Retry(NoBackoff(), 0),  # the next step asks again
            )
        except ValueError:  # its text may hold a part of the password
            raise SettingsError(
                "TENXGRAPH_REDIS_URL is no address of a Redis; use redis://host:6379/0, with special characters of "
                "the password percent-encoded"
            ) from None
        return cls(Redis(connection_pool=pool), metrics=metrics, deadline=deadline)

    async def get(self, thread_id: str, user_id: str) -> Snapshot | None:
        """What is cached for the thread, or ``None``; whether it is true is the caller's to find out."""
        data = await self._ask("get", lambda: self._client.get(_key(thread_id, user_id)), self._deadline)
        if data is None:
            return None
        try:
            return _decode(data, thread_id)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            self._count("get", exc)
            logger.warning("the cache holds something else than a state of thread %s: %s", thread_id, exc)
            return None

    async def put(self, thread_id: str, user_id: str, snapshot: Snapshot) -> bool:
        """Cache ``snapshot``, unless a newer one is there; whether it is cached now."""
        ours = {
            "thread_id": thread_id,
            "state_id": snapshot.state_id,
            "row": snapshot.row,
            "unsaved_messages": sorted(snapshot.unsaved_messages),
            "origin": _plain(snapshot.origin) if snapshot.origin else None,
        }
        meta = load_json(snapshot.fields.get(_META, b"{}"))
        fields = {
            _VERSION: str(snapshot.version).encode(),
            _META: dump_json({"unsaved": snapshot.unsaved, **meta, _OURS: ours}),
            **{name: data for name, data in snapshot.fields.items() if name != _META},
        }
        arguments = (join_fields(fields), snapshot.version, snapshot.unsaved, TTL)
        done = await self._ask("put", lambda: self._put_script([_key(thread_id, user_id)], arguments), _WRITE_DEADLINE)
        return bool(done)

    def put_soon(self, thread_id: str, user_id: str, snapshot: Snapshot) -> None:
        """``put`` in the background. A thread's newer snapshot replaces one that still waits for its turn."""
        self._pending[thread_id, user_id] = snapshot
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_pending())

    async def _write_pending(self) -> None:
        while self._pending:
            await asyncio.sleep(_GATHERING)
            for key in list(self._pending):
                snapshot = self._pending.pop(key, None)
                if snapshot is not None:
                    await self.put(*key, snapshot)

    async def drop(self, thread_id: str, user_id: str) -> None:
        """Forget a thread."""
        self._pending.pop((thread_id, user_id), None)
        await self._ask("drop", lambda: self._client.delete(_key(thread_id, user_id)), self._deadline)

    async def close(self) -> None:
        """Write what waits, and close the connections."""
        if self._writing is not None:
            await self._writing
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    async def _ask(self, operation: str, request: Callable[[], Awaitable[T]], deadline: float) -> T | None:
        """The answer, or ``None`` where there is none in time. After some failures Redis is left alone for a while."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._resting_until:
            return None
        try:
            async with asyncio.timeout(deadline):
                answer = await request()
        except (RedisError, OSError, TimeoutError) as exc:
            self._count(operation, exc)
            if isinstance(exc, ResponseError):  # it is up: full, or not allowed
                logger.warning("the cache refused to %s: %s", operation, exc)
                return None
            self._failures += 1
            if self._failures >= _PATIENCE:
                logger.warning("the cache does not answer (%s); going on without it for %g s", exc, self._rest)
                self._resting_until = loop.time() + self._rest
                self._rest = min(self._rest * 2, _LONGEST_REST)
            return None
        if self._failures >= _PATIENCE:
            logger.info("the cache answers again")
        self._failures, self._rest = 0, _REST
        return answer

    def _count(self, operation: str, exc: Exception) -> None:
        self._metrics.cache_faults.add(1, {"operation": operation, "error": type(exc).__name__})


def _plain(origin: Origin) -> dict[str, Any]:
    """Not ``asdict``, which copies the position item by item."""
    return {field.name: getattr(origin, field.name) for field in dataclasses.fields(origin)}


def _key(thread_id: str, user_id: str) -> str:
    return f"state_cache:{thread_id}:{user_id}"


def _decode(data: bytes | str, thread_id: str) -> Snapshot | None:
    """The snapshot in an entry; ``None`` for one of 10xGraph, which does not say what row it was made of."""
    fields = split_fields(data)
    version = int(load_json(fields.pop(_VERSION, b"-1")))
    meta = load_json(fields.pop(_META, b"{}"))
    ours = meta.pop(_OURS, None)
    unsaved = int(meta.pop("unsaved", 0))
    if ours is None:
        return None
    if ours["thread_id"] != thread_id:  # e.g. the answer to a question that somebody stopped waiting for
        raise ValueError(f"it is of thread {ours['thread_id']!r}")
    if meta:
        fields[_META] = dump_json(meta)
    return Snapshot(
        version=version,
        state_id=ours["state_id"],
        row=ours["row"],
        unsaved=unsaved,
        unsaved_messages=frozenset(ours["unsaved_messages"]),
        fields=fields,
        origin=Origin(**ours["origin"]) if ours["origin"] else None,
    )
