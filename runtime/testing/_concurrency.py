"""Several writers at once: exactly one wins, and nobody's work is lost or mixed."""

from __future__ import annotations

import asyncio

import pytest

from ..storage.contract import Committed, Head, HeadMoved, MessageIdTaken, Store
from ._samples import THREAD, OpenStore, commit, entry, message, message_ids, origin, state_of


async def handles(open_store: OpenStore, count: int) -> list[Store]:
    """``count`` writers on three handles."""
    stores = [await open_store(state_history_limit=0) for _ in range(min(count, 3))]
    return [stores[n % len(stores)] for n in range(count)]


class ConcurrencyConformance:
    """Races of commits, each for several rounds."""

    @pytest.mark.parametrize("writers", [2, 10])
    @pytest.mark.parametrize("start", [0, 1])
    async def test_of_writers_on_one_version_exactly_one_wins(
        self, open_store: OpenStore, writers: int, start: int
    ) -> None:
        stores = await handles(open_store, writers)
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
        stores = await handles(open_store, 10)
        for version in range(5):
            outcomes = await asyncio.gather(
                *(commit(s, version, by=origin(f"c{version}"), messages=[message(f"m{version}")]) for s in stores)
            )
            assert sorted(o.replayed for o in outcomes) == [False] + [True] * 9
            assert {o.version for o in outcomes} == {version + 1}
            assert len({o.state_id for o in outcomes}) == 1

    async def test_no_increment_is_lost(self, open_store: OpenStore) -> None:
        stores = await handles(open_store, 6)
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
        writer, reader = await handles(open_store, 2)
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
        stores = await handles(open_store, 8)
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

    async def test_a_commit_and_a_deletion_leave_all_or_nothing(self, open_store: OpenStore) -> None:
        left, right = await handles(open_store, 2)
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

    async def test_a_first_commit_and_a_deletion_leave_no_thread_without_a_state(self, open_store: OpenStore) -> None:
        left, right = await handles(open_store, 2)
        for attempt in range(20):
            thread_id = f"thread-{attempt}"
            await commit(left, 0, {"n": "old"}, thread_id=thread_id)
            outcome, deleted = await asyncio.gather(
                commit(left, 0, {"n": "new"}, thread_id=thread_id),
                right.delete_thread(thread_id, None),
                return_exceptions=True,
            )
            assert deleted is True
            head = await left.load_head(thread_id, None)
            if isinstance(outcome, Committed):
                assert head is not None
                assert head.state_id == outcome.state_id
            else:
                assert isinstance(outcome, HeadMoved), outcome
                assert head is None, "a refused commit wrote a thread"

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
