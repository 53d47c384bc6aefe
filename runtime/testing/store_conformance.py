"""The conformance suite: one test per promise of ``runtime/storage/contract.py``.

Subclass ``StoreConformance`` in a test module of yours and supply two fixtures (pytest-asyncio)::

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def open_store(self, tmp_path):
            opened = []

            async def open_store(**options):  # state_history_limit=, enforce_user_isolation=
                store = await MyStore.open(tmp_path / "db", **options)
                await store.setup()
                opened.append(store)
                return store

            yield open_store
            for store in opened:
                await store.close()

        @pytest.fixture
        async def store(self, open_store):
            return await open_store()

Every call of ``open_store`` within a test opens the *same*, at first empty, database: several handles are how
the suite sees several workers. ``options`` are those that every store of ours has; without them the defaults
hold: 20 versions are kept, and threads are isolated by user.

A store whose database no tool can share subclasses ``StoreWithoutTransactionsConformance``; its ``transaction()``
raises ``StoreError``.
"""

from __future__ import annotations

import pytest

from ._admin import AdminConformance
from ._claims import ClaimsConformance
from ._commits import CommitConformance
from ._concurrency import ConcurrencyConformance
from ._isolation import IsolationConformance
from ._ledger import LedgerConformance
from ._ledger_concurrency import LedgerConcurrencyConformance
from ._messages import MessagesConformance
from ._transactions import NoTransactionConformance, TransactionConformance
from ._values import ValuesConformance


class _Conformance(
    CommitConformance,
    MessagesConformance,
    IsolationConformance,
    LedgerConformance,
    ClaimsConformance,
    ConcurrencyConformance,
    LedgerConcurrencyConformance,
    AdminConformance,
    ValuesConformance,
):
    pytestmark = pytest.mark.asyncio


class StoreConformance(_Conformance, TransactionConformance):
    """All promises. See the module for the fixtures that a subclass supplies."""


class StoreWithoutTransactionsConformance(_Conformance, NoTransactionConformance):
    """All promises but ``transaction()``, which a store may refuse."""
