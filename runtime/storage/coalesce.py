"""Joining small statements: calls that come while others are under way share the next round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_UNDER_WAY = 4
"""Statements at once. More than one, so that a statement that waits for a lock does not hold up everybody."""
_LARGEST = 100


class Coalesced(Generic[K, V]):
    """``many`` for one item at a time, joined as a database joins commits: an idle one is never delayed.

    Where a joined statement fails, each of its items is tried alone, so that everybody gets their own error.
    """

    def __init__(self, many: Callable[[Sequence[K]], Awaitable[Sequence[V]]]) -> None:
        self._many = many
        self._waiting: list[tuple[K, asyncio.Future[V]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving = 0
        """Servers that will look at ``_waiting`` once more; not ``len(_tasks)``, which a finished one leaves later."""

    async def __call__(self, item: K) -> V:
        """The result for ``item``."""
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._serving < _UNDER_WAY:
            self._serving += 1
            task = asyncio.create_task(self._serve())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _serve(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_LARGEST], self._waiting[_LARGEST:]
                batch = [(item, future) for item, future in batch if not future.done()]  # nobody waits: not even sent
                if batch:
                    await self._run(batch)
        finally:
            self._serving -= 1  # in the same step as the look at an empty list

    async def _run(self, batch: list[tuple[K, asyncio.Future[V]]]) -> None:
        try:
            results = await self._many([item for item, _ in batch])
        except Exception as exc:
            if len(batch) == 1:
                _set(batch[0][1], error=exc)
                return
            for one in batch:
                await self._run([one])
            return
        for (_, future), result in zip(batch, results, strict=True):
            _set(future, result=result)


def _set(future: asyncio.Future[V], *, result: V | None = None, error: Exception | None = None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # None is a V where it is given
