"""What operators do: set up, list, read, delete, purge."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from ..storage.contract import Store
from ._samples import THREAD, USER, OpenStore, chain, commit, decoded, entry, intent, message, origin


class AdminConformance:
    """``Store`` and ``ThreadAdmin``."""

    async def test_setup_can_be_repeated(self, store: Store) -> None:
        await commit(store, 0, {"n": "kept"})
        await store.setup()
        await store.check()
        assert decoded(await store.load_head(THREAD, USER)) == {"n": "kept"}

    async def test_many_may_set_up_at_once(self, open_store: OpenStore) -> None:
        stores = await asyncio.gather(*(open_store() for _ in range(10)))
        await asyncio.gather(*(store.setup() for store in stores))
        await asyncio.gather(*(store.check() for store in stores))

    async def test_a_list_of_threads_has_the_last_touched_first(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            await commit(store, 0, thread_id=name)
            await asyncio.sleep(0.002)
        await commit(store, 1, thread_id="a")
        threads = await store.list_threads()
        assert [(t.thread_id, t.version) for t in threads] == [("a", 2), ("c", 1), ("b", 1)]
        assert all(t.created_at <= t.updated_at for t in threads)
        assert threads[0].created_at < threads[0].updated_at

    async def test_threads_are_listed_page_by_page(self, store: Store) -> None:
        for n in range(7):
            await commit(store, 0, thread_id=f"t{n}", user_id="u1" if n % 2 else USER)
            await asyncio.sleep(0.002)
        pages: list[list[str]] = []
        before: datetime | None = None
        while page := await store.list_threads(limit=3, before=before):
            pages.append([t.thread_id for t in page])
            before = page[-1].updated_at
        assert pages == [["t6", "t5", "t4"], ["t3", "t2", "t1"], ["t0"]]
        assert [t.thread_id for t in await store.list_threads(user_id="u1", limit=2)] == ["t5", "t3"]

    async def test_pages_miss_none_of_the_same_time(self, store: Store) -> None:
        """A page ends in the middle of threads that were updated at once, however their ids sort."""
        names = ["B", "Z", "a", "b-1", "b1", "b_2", "\u00e4", "\U0001f600"]
        for name in names:
            await commit(store, 0, thread_id=name)
        everything = [(t.thread_id, t.updated_at) for t in await store.list_threads()]
        seen: list[tuple[str, datetime]] = []
        last: tuple[str | None, datetime | None] = (None, None)
        while page := await store.list_threads(limit=1, before=last[1], before_thread=last[0]):
            seen += [(t.thread_id, t.updated_at) for t in page]
            last = seen[-1]
        assert seen == everything
        # as if the one before it had been the last of the same time
        for (name, at), (_, later) in zip(everything[1:], everything, strict=False):
            assert later > at
            assert await store.list_threads(before=at, before_thread="") != []
            (first, *_) = await store.list_threads(before=at, before_thread="")
            assert first.thread_id == name
            following = await store.list_threads(before=at, before_thread=name)
            assert name not in {t.thread_id for t in following}

    async def test_a_line_tells_about_its_thread(self, store: Store) -> None:
        state = {"execution_meta": {"status": "completed", "step": 3}, "context": []}
        await commit(store, 0, state, thread_name="My thread", thread_meta={"k": [1, None]}, meta={"trace": "x"})
        await commit(store, 0, {"n": 1}, thread_id="thread-2")
        infos = {t.thread_id: t for t in await store.list_threads()}
        mine, plain = infos[THREAD], infos["thread-2"]
        assert (mine.name, mine.user_id, mine.version, mine.status) == ("My thread", USER, 1, "completed")
        assert mine.meta == {"k": [1, None]}
        assert (plain.name, plain.status, plain.meta) == ("Thread thread-2", "", {})
        assert abs(mine.created_at - datetime.now(UTC)) < timedelta(minutes=5)

    async def test_a_name_that_is_too_long_is_cut(self, store: Store) -> None:
        await commit(store, 0, thread_name="n" * 300)
        assert [t.name for t in await store.list_threads()] == ["n" * 255]

    async def test_a_version_tells_who_wrote_it_and_how_large_it_is(self, store: Store) -> None:
        first = await commit(store, 0, {"text": "x" * 1000}, by=origin("c1", run_id="r1"))
        await commit(store, 1, {"text": ""})
        newer, older = await store.list_versions(THREAD, USER)
        assert (newer.version, newer.origin) == (2, None)
        assert (older.version, older.state_id, older.origin) == (1, first.state_id, origin("c1", run_id="r1"))
        assert 1000 < older.size_bytes < 1100
        assert newer.size_bytes < 100
        assert older.created_at <= newer.created_at
        assert await store.list_versions("nowhere", USER) == []

    async def test_a_kept_version_can_be_loaded(self, store: Store) -> None:
        made = await chain(store, 23)
        head = await store.load_version(THREAD, USER, 5)
        assert head is not None
        assert (head.version, head.state_id, head.user_id) == (5, made[4].state_id, USER)
        assert decoded(head) == {"n": 5}
        for missing in (0, 3, 24, -1):
            assert await store.load_version(THREAD, USER, missing) is None, missing
        assert await store.load_version("nowhere", USER, 1) is None

    async def test_deleting_takes_all_that_is_the_threads(self, store: Store) -> None:
        for thread_id, message_id in ((THREAD, "m1"), ("thread-2", "m2")):
            await commit(store, 0, thread_id=thread_id, messages=[message(message_id)], results=[entry("k", thread_id)])
            await store.claim(thread_id, intent("l", "me"))
            await store.put_interrupt(thread_id, "i1", {"value": 1})
        assert await store.delete_thread(THREAD, USER) is True
        assert await store.delete_thread(THREAD, USER) is False
        assert await store.load_head(THREAD, None) is None
        assert await store.list_versions(THREAD, None) == []
        assert await store.list_messages(THREAD, None) == []
        assert await store.lookup(THREAD, ["k"]) == {}
        assert await store.calls(THREAD) == []
        assert [t.thread_id for t in await store.list_threads()] == ["thread-2"]
        assert len(await store.calls("thread-2")) == 2
        assert [m.message_id for m in await store.list_messages("thread-2", None)] == ["m2"]
        assert await store.load_interrupts("thread-2", ["i1"]) == {"i1": {"value": 1}}

    async def test_purging_takes_old_threads_in_batches(self, store: Store) -> None:
        for n in range(5):
            await commit(store, 0, thread_id=f"old-{n}", messages=[message(f"m{n}")])
            await asyncio.sleep(0.002)
        (newest, *_) = await store.list_threads(limit=1)
        await asyncio.sleep(0.002)
        await commit(store, 0, thread_id="new")
        await commit(store, 1, thread_id="old-0")  # touched again: not old any more
        limit = newest.updated_at + timedelta(microseconds=1)
        assert await store.purge(older_than=newest.updated_at - timedelta(hours=1)) == 0
        assert await store.purge(older_than=limit, batch=3) == 3
        assert {t.thread_id for t in await store.list_threads()} == {"old-4", "new", "old-0"}, "the oldest go first"
        assert await store.purge(older_than=limit, batch=3) == 1
        assert await store.purge(older_than=limit, batch=3) == 0
        assert {t.thread_id for t in await store.list_threads()} == {"new", "old-0"}
        assert await store.list_messages("old-1", None) == []

    async def test_times_may_be_given_in_any_zone(self, store: Store) -> None:
        await commit(store, 0)
        (info,) = await store.list_threads()
        later = (info.updated_at + timedelta(seconds=1)).astimezone(datetime.now().astimezone().tzinfo)
        assert len(await store.list_threads(before=later)) == 1
        assert await store.list_threads(before=later - timedelta(seconds=1)) == []
        assert await store.purge(older_than=later) == 1

    async def test_closing_one_handle_leaves_the_others(self, open_store: OpenStore) -> None:
        left, right = await open_store(), await open_store()
        await commit(left, 0)
        await left.close()
        assert (await commit(right, 1)).version == 2
        await left.close()
