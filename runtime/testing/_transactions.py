"""A tool's effect and its record commit together."""

from __future__ import annotations

import asyncio

import pytest

from ..errors import StoreError
from ..storage.contract import Store
from ._samples import THREAD, OpenStore, commit, entry


class _Failure(Exception):
    pass


class NoTransactionConformance:
    """``ToolLedger.transaction`` of a store whose database no tool can share."""

    async def test_a_store_without_transactions_says_so(self, store: Store) -> None:
        with pytest.raises(StoreError):
            async with store.transaction():
                pass


class TransactionConformance:
    """``ToolLedger.transaction``."""

    async def test_a_record_commits_with_its_transaction(self, store: Store, open_store: OpenStore) -> None:
        await commit(store, 0)
        other = await open_store()
        async with store.transaction() as transaction:
            assert transaction.connection is not None
            assert await transaction.record(THREAD, entry("k", 1)) is None
            assert await other.lookup(THREAD, ["k"]) == {}, "not visible before it commits"
            assert await store.lookup(THREAD, ["k"]) == {}, "not even to the store's other statements"
        assert await other.lookup(THREAD, ["k"]) == {"k": entry("k", 1).envelope}

    async def test_an_error_rolls_back(self, store: Store) -> None:
        await commit(store, 0)

        async def fail() -> None:
            async with store.transaction() as transaction:
                await transaction.record(THREAD, entry("k", 1))
                raise _Failure

        with pytest.raises(_Failure):
            await fail()
        assert await store.lookup(THREAD, ["k"]) == {}
        assert await store.record(THREAD, entry("k", 2)) is None

    async def test_the_body_s_own_error_comes_out_as_it_is(self, store: Store) -> None:
        """A refused connection to somebody else says nothing about the store."""
        for error in (ConnectionRefusedError("the mail server"), TimeoutError("the mail server"), KeyError("x")):
            with pytest.raises(type(error)) as raised:
                async with store.transaction():
                    raise error
            assert raised.value is error

    async def test_a_cancellation_rolls_back(self, store: Store) -> None:
        await commit(store, 0)
        recorded = asyncio.Event()

        async def hang() -> None:
            async with store.transaction() as transaction:
                await transaction.record(THREAD, entry("k", 1))
                recorded.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hang())
        await recorded.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await store.record(THREAD, entry("k", 2)) is None

    async def test_the_first_record_stays_inside_a_transaction_too(self, store: Store) -> None:
        await commit(store, 0)
        await store.record(THREAD, entry("k", "before"))
        async with store.transaction() as transaction:
            assert await transaction.record(THREAD, entry("k", "late")) == entry("k", "before").envelope
            assert await transaction.record(THREAD, entry("l", "own")) is None
            assert await transaction.record(THREAD, entry("l", "twice")) == entry("l", "own").envelope
        found = await store.lookup(THREAD, ["k", "l"])
        assert {key: envelope["value"] for key, envelope in found.items()} == {"k": "before", "l": "own"}

    @pytest.mark.parametrize("fails", [False, True])
    async def test_a_record_waits_for_the_transaction_that_came_first(self, store: Store, fails: bool) -> None:
        await commit(store, 0)

        async def first() -> None:
            async with store.transaction() as transaction:
                await transaction.record(THREAD, entry("k", "first"))
                recorded.set()
                await asyncio.sleep(0.1)
                if fails:
                    raise _Failure

        recorded = asyncio.Event()
        task = asyncio.create_task(first())
        await recorded.wait()
        answer = await store.record(THREAD, entry("k", "second"))
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        if fails:
            assert isinstance(outcome, _Failure)
            assert answer is None
        else:
            assert outcome is None
            assert answer == entry("k", "first").envelope

    async def test_a_record_in_a_transaction_needs_its_thread(self, store: Store) -> None:
        with pytest.raises(StoreError):
            async with store.transaction() as transaction:
                await transaction.record("nowhere", entry("k"))
        await commit(store, 0)
        assert await store.record(THREAD, entry("k")) is None
