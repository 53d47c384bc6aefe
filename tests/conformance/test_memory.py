"""The conformance suite on the store in memory."""

from __future__ import annotations

from typing import Any

import pytest

from tenxgraph_temporal.runtime.errors import StoreError
from tenxgraph_temporal.runtime.storage.contract import Store
from tenxgraph_temporal.runtime.storage.memory import MemoryStore
from tenxgraph_temporal.runtime.testing import StoreWithoutTransactionsConformance


class TestMemoryStore(StoreWithoutTransactionsConformance):
    @pytest.fixture
    def open_store(self) -> Any:
        first = MemoryStore()

        async def open_store(**options: Any) -> Store:
            store: Store = MemoryStore(**options)
            store._data = first._data  # type: ignore[attr-defined]  # one more handle on the same threads
            return store

        return open_store

    @pytest.fixture
    async def store(self, open_store: Any) -> Any:
        return await open_store()

    async def test_the_remedy_for_a_missing_transaction_is_named(self) -> None:
        with pytest.raises(StoreError, match="postgresql://"):
            MemoryStore().transaction()
