"""A process beside the test's: counts up in a shared file, or dies in the middle of a transaction."""

from __future__ import annotations

import asyncio
import os
import sys

from tenxgraph_temporal.runtime.storage.contract import HeadMoved
from tenxgraph_temporal.runtime.storage.sqlite import SqliteStore
from tenxgraph_temporal.runtime.testing._samples import THREAD, commit, decoded, entry


async def count(path: str, times: str) -> None:
    store = await SqliteStore.open(path, retry_timeout=30)
    for _ in range(int(times)):
        while True:
            head = await store.load_head(THREAD, None)
            assert head is not None
            try:
                await commit(store, head.version, {"count": decoded(head)["count"] + 1})
                break
            except HeadMoved:
                continue
    await store.close()


async def die(path: str) -> None:
    store = await SqliteStore.open(path)
    async with store.transaction() as transaction:
        await transaction.record(THREAD, entry("k", 1))
        os._exit(9)


if __name__ == "__main__":
    asyncio.run(die(sys.argv[2]) if sys.argv[1] == "die" else count(*sys.argv[2:4]))
