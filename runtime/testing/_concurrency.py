"""Several writers at once: exactly one wins, and nobody's work is lost or mixed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from ..storage.contract import Claimed, Committed, Head, HeadMoved, Held, MessageIdTaken, Store
from ._samples import THREAD, OpenStore, commit, entry, intent, message, message_ids, origin, state_of


async def _handles(open_store: OpenStore, count: int) -> list[Store]:
    """``count`` writers on three handles."""
    stores = [await open_store(state_history_limit=0) for _ in range(min(count, 3))]
    return [stores[n % len(stores)] for n in range(count)]


class ConcurrencyConformance:
    """Races, each for several rounds."""

    @pytest.mark.parametrize("writers", [2, 10])
    @pytest.mark.parametrize("start", [0, 1])
    async def test_of_writers_on_one_version_exactly_one_wins(
        self, open_store: OpenStore, writers: int, start: int
    ) -> None:
        stores = await _handles(open_store, writers)
        for attempt in range(5):
            thread_id = f"thread-{attempt}"
            for n in range(start):
                await commit(stores[0], n, thread_id=thread_id)
            outcomes = await asyncio.gather(
                *(
                    commit(
                        store,
                        start,
                        {"writer": n},
                        by=origin("c", run_id=f"run-{n}"),
                        thread_id=thread_id,
                        messages=[message(f"m{attempt}-{n}")],
                        results=[entry("shared", n), entry(f"own-{n}", n)],
                    )
                    for n, store in enumerate(stores)
                ),
                return_exceptions=True,
            )
            (winner,) = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
            for n, outcome in enumerate(outcomes):
                if n == winner:
                    continue
                assert isinstance(outcome, HeadMoved), outcome
                assert outcome.head.version == start + 1
                assert outcome.head.origin == origin("c", run_id=f"run-{winner}")
            assert await state_of(stores[0], thread_id) == {"writer": winner}
            assert await message_ids(stores[0], thread_id) == [f"m{attempt}-{winner}"]
            assert sorted(c.ledger_key for c in await stores[0].calls(thread_id)) == [f"own-{winner}", "shared"]

    async def test_one_commit_sent_ten_times_is_written_once(self, open_store: OpenStore) -> None:
        stores = await _handles(open_store, 10)
        for version in range(5):
            outcomes = await asyncio.gather(
                *(commit(s, version, by=origin(f"c{version}"), messages=[message(f"m{version}")]) for s in stores)
            )
            assert sorted(o.replayed for o in outcomes) == [False] + [True] * 9
            assert {o.version for o in outcomes} == {version + 1}
            assert len({o.state_id for o in outcomes}) == 1

    async def test_no_increment_is_lost(self, open_store: OpenStore) -> None:
        stores = await _handles(open_store, 6)
        await commit(stores[0], 0, {"count": 0})

        async def increment(store: Store) -> None:
            while True:
                head = await store.load_head(THREAD, None)
                assert head is not None
                count = (await _count(head)) + 1
                try:
                    await commit(store, head.version, {"count": count}, messages=[message(f"m{count}")])
                    return
                except HeadMoved:
                    continue

        async def several(store: Store) -> None:
            for _ in range(5):
                await increment(store)

        await asyncio.gather(*(several(store) for store in stores))
        assert await state_of(stores[0]) == {"count": 30}
        assert [v.version for v in await stores[0].list_versions(THREAD, None)] == list(range(31, 0, -1))
        assert await message_ids(stores[0]) == [f"m{n}" for n in range(1, 31)]

    async def test_a_reader_sees_state_and_messages_in_step(self, open_store: OpenStore) -> None:
        writer, reader = await _handles(open_store, 2)
        await commit(writer, 0, messages=[message("m0")])
        done = asyncio.Event()

        async def read() -> None:
            while not done.is_set():
                head = await reader.load_head(THREAD, None)
                count = len(await message_ids(reader))
                later = await reader.load_head(THREAD, None)
                assert head is not None
                assert later is not None
                assert head.version <= count <= later.version

        reading = asyncio.create_task(read())
        for n in range(1, 25):
            await commit(writer, n, messages=[message(f"m{n}")])
        done.set()
        await reading

    async def test_of_threads_that_want_one_message_id_one_gets_it(self, open_store: OpenStore) -> None:
        stores = await _handles(open_store, 8)
        outcomes = await asyncio.gather(
            *(commit(s, 0, thread_id=f"thread-{n}", messages=[message("m1", str(n))]) for n, s in enumerate(stores)),
            return_exceptions=True,
        )
        (winner,) = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        losers = [outcome for n, outcome in enumerate(outcomes) if n != winner]
        assert all(isinstance(o, MessageIdTaken) and o.message_ids == {"m1"} for o in losers), losers
        assert [t.thread_id for t in await stores[0].list_threads()] == [f"thread-{winner}"]
        (row,) = await stores[0].list_messages(f"thread-{winner}", None)
        assert row.content[0]["text"] == str(winner)

    async def test_of_twenty_records_one_wins_and_all_learn_which(self, open_store: OpenStore) -> None:
        stores = await _handles(open_store, 20)
        await commit(stores[0], 0)
        for attempt in range(3):
            key = f"m1:{attempt}"
            answers = await asyncio.gather(*(s.record(THREAD, entry(key, n)) for n, s in enumerate(stores)))
            (winner,) = [n for n, answer in enumerate(answers) if answer is None]
            recorded = entry(key, winner).envelope
            assert [a for a in answers if a is not None] == [recorded] * 19
            assert await stores[0].lookup(THREAD, [key]) == {key: recorded}

    async def test_a_record_and_a_commit_agree_on_the_first(self, open_store: OpenStore) -> None:
        left, right = await _handles(open_store, 2)
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
        stores = await _handles(open_store, 10)
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
        stores = await _handles(open_store, 10)
        await commit(stores[0], 0)
        await stores[0].record(THREAD, entry("k"))
        await asyncio.gather(*(s.count_replay(THREAD, "k") for s in stores for _ in range(3)))
        (call,) = await stores[0].calls(THREAD)
        assert call.replays == 30

    async def test_a_commit_and_a_deletion_leave_all_or_nothing(self, open_store: OpenStore) -> None:
        left, right = await _handles(open_store, 2)
        for attempt in range(8):
            await commit(left, 0, thread_id=f"thread-{attempt}")
            outcome, deleted = await asyncio.gather(
                commit(left, 1, thread_id=f"thread-{attempt}", messages=[message(f"m{attempt}")], results=[entry("k")]),
                right.delete_thread(f"thread-{attempt}", None),
                return_exceptions=True,
            )
            assert deleted is True
            assert isinstance(outcome, Committed) or (isinstance(outcome, HeadMoved) and outcome.head.version == 0)
            assert await left.load_head(f"thread-{attempt}", None) is None
            assert await left.lookup(f"thread-{attempt}", ["k"]) == {}

    async def test_a_cancelled_commit_leaves_a_store_that_works(self, store: Store) -> None:
        for n in range(20):
            task = asyncio.create_task(commit(store, n, by=origin(f"c{n}"), messages=[message(f"m{n}")]))
            await asyncio.sleep(0.0005 * n)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            made = await commit(store, n, by=origin(f"c{n}"), messages=[message(f"m{n}")])
            assert made.version == n + 1
        assert await message_ids(store) == [f"m{n}" for n in range(20)]


async def _count(head: Head) -> int:
    assert head.fields is not None
    await asyncio.sleep(0)
    return int(head.fields["count"])
