"""Several attempts at one call: one record, one claim."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from ..errors import StoreError
from ..storage.contract import Claimed, Held, Store
from ._concurrency import handles
from ._samples import THREAD, OpenStore, commit, entry, intent


class LedgerConcurrencyConformance:
    """Races of records and claims."""

    async def test_of_twenty_records_one_wins_and_all_learn_which(self, open_store: OpenStore) -> None:
        stores = await handles(open_store, 20)
        await commit(stores[0], 0)
        for attempt in range(3):
            key = f"m1:{attempt}"
            answers = await asyncio.gather(*(s.record(THREAD, entry(key, n)) for n, s in enumerate(stores)))
            (winner,) = [n for n, answer in enumerate(answers) if answer is None]
            recorded = entry(key, winner).envelope
            assert [a for a in answers if a is not None] == [recorded] * 19
            assert await stores[0].lookup(THREAD, [key]) == {key: recorded}

    async def test_a_record_and_a_commit_agree_on_the_first(self, open_store: OpenStore) -> None:
        left, right = await handles(open_store, 2)
        await commit(left, 0)
        for n in range(10):
            answer, _ = await asyncio.gather(
                left.record(THREAD, entry(f"k{n}", "record")),
                commit(right, n + 1, results=[entry(f"k{n}", "commit")]),
            )
            recorded = (await left.lookup(THREAD, [f"k{n}"]))[f"k{n}"]
            assert recorded["value"] == ("record" if answer is None else "commit")
            assert answer in (None, recorded)

    @pytest.mark.parametrize("expired", [False, True])
    async def test_of_ten_claims_one_is_granted(self, open_store: OpenStore, expired: bool) -> None:
        stores = await handles(open_store, 10)
        await commit(stores[0], 0)
        for attempt in range(3):
            key = f"m1:{attempt}"
            if expired:
                await stores[0].claim(THREAD, intent(key, "lost", 0.001))
                await asyncio.sleep(0.01)
            claims = await asyncio.gather(
                *(
                    s.take_over(THREAD, intent(key, f"o{n}")) if expired else s.claim(THREAD, intent(key, f"o{n}"))
                    for n, s in enumerate(stores)
                )
            )
            (winner,) = [n for n, claim in enumerate(claims) if isinstance(claim, Claimed)]
            assert sum(isinstance(claim, Held) for claim in claims) == 9, claims
            renewals = [await s.renew(THREAD, key, f"o{n}", timedelta(1)) for n, s in enumerate(stores)]
            assert renewals == [n == winner for n in range(10)]

    async def test_replays_counted_at_once_are_all_counted(self, open_store: OpenStore) -> None:
        stores = await handles(open_store, 10)
        await commit(stores[0], 0)
        await stores[0].record(THREAD, entry("k"))
        await asyncio.gather(*(s.count_replay(THREAD, "k") for s in stores for _ in range(3)))
        (call,) = await stores[0].calls(THREAD)
        assert call.replays == 30

    async def test_one_bad_record_among_many_fails_alone(self, open_store: OpenStore) -> None:
        """A store that joins statements must still give each caller their own answer."""
        stores = await handles(open_store, 12)
        await commit(stores[0], 0)
        await stores[0].record(THREAD, entry("k4", "before"))
        targets = [("nowhere", f"k{n}") if n == 7 else (THREAD, "k" * 256 if n == 9 else f"k{n}") for n in range(12)]
        answers = await asyncio.gather(
            *(
                s.record(thread_id, entry(key, n))
                for n, (s, (thread_id, key)) in enumerate(zip(stores, targets, strict=True))
            ),
            return_exceptions=True,
        )
        for n, answer in enumerate(answers):
            if n in (7, 9):
                assert isinstance(answer, StoreError), answer
            else:
                assert answer == (entry("k4", "before").envelope if n == 4 else None), n
        assert len(await stores[0].calls(THREAD)) == 10

    async def test_a_cancelled_record_does_not_cost_the_others_theirs(self, store: Store) -> None:
        await commit(store, 0)
        for attempt in range(5):
            tasks = [asyncio.create_task(store.record(THREAD, entry(f"{attempt}-{n}", n))) for n in range(12)]
            await asyncio.sleep(0.0005 * attempt)
            for task in tasks[::3]:
                task.cancel()
            outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
            for n, outcome in enumerate(outcomes):
                assert outcome is None or (n % 3 == 0 and isinstance(outcome, asyncio.CancelledError)), outcome
            found = await store.lookup(THREAD, [f"{attempt}-{n}" for n in range(12)])
            assert {f"{attempt}-{n}" for n in range(12) if n % 3} <= set(found)
