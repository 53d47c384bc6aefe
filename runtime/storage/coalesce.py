"""Joining small statements: calls that come while others are under way share the next round trip."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_UNDER_WAY = 4
"""Statements at once. More than one, so that a statement that waits for a lock does not hold up everybody."""
_LARGEST = 100


@dataclass(frozen=True)
class _Waiting(Generic[K, V]):
    item: K
    future: asyncio.Future[V]
    context: contextvars.Context


class Coalesced(Generic[K, V]):
    """``many`` for one item at a time, joined as a database joins commits: an idle one is never delayed.

    A joined statement is made in the context of its first caller, in whose trace it shows. Where it fails, each of its
    items is tried alone, so that everybody gets their own error.
    """

    def __init__(self, many: Callable[[Sequence[K]], Awaitable[Sequence[V]]]) -> None:
        self._many = many
        self._waiting: list[_Waiting[K, V]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving = 0
        """Servers that will look at ``_waiting`` once more; not ``len(_tasks)``, which a finished one leaves later."""

    async def __call__(self, item: K) -> V:
        """The result for ``item``."""
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(item, future, contextvars.copy_context()))
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
                batch = [one for one in batch if not one.future.done()]  # nobody waits: not even sent
                if batch:
                    await self._run(batch)
        finally:
            self._serving -= 1  # in the same step as the look at an empty list

    async def _run(self, batch: list[_Waiting[K, V]]) -> None:
        try:
            joined = self._joined([one.item for one in batch])
            results = await asyncio.create_task(joined, context=batch[0].context)
        except Exception as exc:
            if len(batch) == 1:
                _set(batch[0].future, error=exc)
                return
            for one in batch:
                await self._run([one])
            return
        for one, result in zip(batch, results, strict=True):
            _set(one.future, result=result)

    async def _joined(self, items: Sequence[K]) -> Sequence[V]:
        return await self._many(items)


def _set(future: asyncio.Future[V], *, result: V | None = None, error: Exception | None = None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # None is a V where it is given
