"""The conformance suite on Postgres, each test in a schema of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest

from tenxgraph_temporal.runtime.storage.coalesce import Coalesced
from tenxgraph_temporal.runtime.storage.contract import Committed, HeadMoved, Store
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore
from tenxgraph_temporal.runtime.testing import StoreConformance
from tenxgraph_temporal.runtime.testing._samples import THREAD, commit, entry


class TestPostgresStore(StoreConformance):
    @pytest.fixture
    async def open_store(self, postgres_dsn: str) -> AsyncIterator[Any]:
        schema = f"c_{uuid.uuid4().hex}"
        opened: list[PostgresStore] = []

        async def open_store(**options: Any) -> Store:
            store = await PostgresStore.open(postgres_dsn, schema=schema, pool_size=6, **options)
            opened.append(store)
            await store.setup()
            return store

        yield open_store
        for store in opened:
            await store.close()

    @pytest.fixture
    async def store(self, open_store: Any) -> Any:
        return await open_store()

    async def test_a_thread_that_has_no_state_yet_starts_at_0(self, store: PostgresStore) -> None:
        """10xGraph inserts the thread's row first."""
        insert = f'INSERT INTO "{store.schema}".threads (thread_id, user_id) VALUES ($1, $2)'
        await store.pool.execute(insert, "early", "user-1")
        head = await store.load_head("early", "user-1")
        assert head is not None
        assert (head.version, head.state_id, head.fields, head.origin) == (0, 0, None, None)
        (info,) = await store.list_threads()
        assert (info.version, info.status) == (0, "")
        assert (await commit(store, 0, thread_id="early")).version == 1

    async def test_a_first_commit_that_waits_for_a_deletion_leaves_all_or_nothing(self, store: PostgresStore) -> None:
        await commit(store, 0)
        async with store.pool.acquire() as connection, connection.transaction():
            await connection.execute(f'DELETE FROM "{store.schema}".threads')
            waiting = asyncio.create_task(commit(store, 0, user_id="user-2"))
            await waits_for_a_lock(store)
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        threads = [(t.user_id, t.version) for t in await store.list_threads()]
        if isinstance(outcome, HeadMoved):
            assert threads == [], "a refused commit made a thread, and for another user"
        else:
            assert (outcome, threads) == (Committed(state_id=2, version=1), [("user-2", 1)])

    async def test_a_commit_that_waits_for_a_deletion_does_not_bring_the_thread_back(
        self, store: PostgresStore
    ) -> None:
        await commit(store, 0)
        async with store.pool.acquire() as connection, connection.transaction():
            await connection.execute(f'DELETE FROM "{store.schema}".threads')
            waiting = asyncio.create_task(commit(store, 1))
            await waits_for_a_lock(store)
        with pytest.raises(HeadMoved) as moved:
            await waiting
        assert moved.value.head.version == 0
        assert await store.list_threads() == []

    async def test_connections_that_are_cut_off_again_and_again_cost_no_statement(
        self, store: PostgresStore, postgres_dsn: str
    ) -> None:
        """Whatever the driver makes of a connection that is going away, it is one that is lost."""
        await commit(store, 0)
        done = asyncio.Event()

        async def ask(number: int) -> int:
            asked = 0
            while not done.is_set():
                await store.record(THREAD, entry(f"{number}-{asked}"))
                asked += 1
            return asked

        asking = [asyncio.create_task(ask(number)) for number in range(6)]
        other = await asyncpg.connect(postgres_dsn)
        cut = 0
        for _ in range(60):
            await asyncio.sleep(0.01)
            cut += await other.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE $1",
                f'%"{store.schema}".%',
            )
        await other.close()
        done.set()
        asked = await asyncio.gather(*asking)
        assert cut
        assert len(await store.calls(THREAD)) == sum(asked)


async def test_nobody_waits_for_a_joined_statement_that_is_never_sent() -> None:
    gate = asyncio.Event()

    async def many(items: Sequence[int]) -> Sequence[int]:
        await gate.wait()
        return items

    joined = Coalesced(many)

    async def ask(number: int) -> int:
        answer = await joined(number)
        return await joined(100) if number == 0 else answer

    asking = []
    for number in range(4):  # as many statements under way as there may be, and all end at one moment
        asking.append(asyncio.create_task(ask(number)))
        await asyncio.sleep(0.01)
    gate.set()
    _, hanging = await asyncio.wait(asking, timeout=1)
    for task in hanging:
        task.cancel()
    assert not hanging


async def waits_for_a_lock(store: PostgresStore) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1"
    async with asyncio.timeout(10):
        while not await store.pool.fetchval(query, f'%"{store.schema}".%'):
            await asyncio.sleep(0.01)
