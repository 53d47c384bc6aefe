"""The conformance suite on Postgres, each test in a schema of its own."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenxgraph_temporal.runtime.storage.contract import Store
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore
from tenxgraph_temporal.runtime.testing import StoreConformance


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
        await starts_at_0(store)


async def starts_at_0(store: Store) -> None:
    from tenxgraph_temporal.runtime.testing._samples import commit

    head = await store.load_head("early", "user-1")
    assert head is not None
    assert (head.version, head.state_id, head.fields, head.origin) == (0, 0, None, None)
    (info,) = await store.list_threads()
    assert (info.version, info.status) == (0, "")
    assert (await commit(store, 0, thread_id="early")).version == 1
