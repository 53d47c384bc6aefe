"""Versioned state: compare-and-swap, idempotence, kept versions."""

from __future__ import annotations

import pytest

from ..errors import StoreError
from ..state.encoding import dump_json
from ..storage.contract import Commit, HeadMoved, MessageIdTaken, Store
from ._samples import THREAD, USER, OpenStore, chain, commit, decoded, entry, message, message_ids, origin, state_of


class CommitConformance:
    """``ThreadStore``."""

    async def test_a_thread_that_was_never_written_has_no_head(self, store: Store) -> None:
        assert await store.load_head(THREAD, USER) is None
        assert await store.load_head(THREAD, None) is None

    async def test_the_first_commit_makes_the_thread_at_version_1(self, store: Store) -> None:
        made = await commit(store, 0, {"n": 1, "text": "a"}, by=origin("c1", position={"step": 1}, config={"k": [1]}))
        assert (made.version, made.replayed) == (1, False)
        head = await store.load_head(THREAD, USER)
        assert head is not None
        assert (head.thread_id, head.user_id, head.version, head.state_id) == (THREAD, USER, 1, made.state_id)
        assert decoded(head) == {"n": 1, "text": "a"}
        assert head.origin == origin("c1", position={"step": 1}, config={"k": [1]})
        (info,) = await store.list_threads()
        assert info.name == f"Thread {THREAD}"

    async def test_versions_are_dense_from_1(self, store: Store) -> None:
        made = await chain(store, 7)
        assert [c.version for c in made] == [1, 2, 3, 4, 5, 6, 7]
        assert [v.version for v in await store.list_versions(THREAD, USER)] == [7, 6, 5, 4, 3, 2, 1]
        state_ids = [c.state_id for c in made]
        assert len(set(state_ids)) == 7, state_ids

    @pytest.mark.parametrize("size", [10, 100_000])
    async def test_a_commit_that_knows_its_base_stores_all_the_same(self, store: Store, size: int) -> None:
        before = {
            "blob": "x" * size,
            "same": [1, {"a": [2]}],
            "longer": [{"text": "é,]"}, "]"],
            "empty": [],
            "other": [1, 2],
            "shorter": [1, 2, 3],
            "kind": [1],
            "gone": 1,
        }
        after = {
            **before,
            "longer": [{"text": "é,]"}, "]", {"text": "new"}, ["]"]],
            "empty": [1],
            "other": [1, 3, 4],
            "shorter": [1],
            "kind": {"0": 1},
            "new": [None],
        }
        kept = {name: value for name, value in after.items() if name != "gone"}
        first = await commit(store, 0, before)
        base = {name: dump_json(value) for name, value in before.items()}
        second = await commit(store, 1, after, expected_state_id=first.state_id, base=base)
        assert (await state_of(store)) == after
        base = {name: dump_json(value) for name, value in after.items()}
        await commit(store, 2, kept, expected_state_id=second.state_id, base=base)
        assert (await state_of(store)) == kept
        with pytest.raises(HeadMoved):  # a base that is no longer the head's
            await commit(store, 2, before, expected_state_id=second.state_id, base=base)
        assert (await state_of(store)) == kept

    async def test_a_head_that_the_caller_has_comes_without_its_fields(self, store: Store) -> None:
        first, second = await chain(store, 2)
        known = await store.load_head(THREAD, USER, known_state_id=second.state_id)
        assert known is not None
        assert (known.fields, known.version, known.state_id) == (None, 2, second.state_id)
        older = await store.load_head(THREAD, USER, known_state_id=first.state_id)
        assert decoded(older) == {"n": 2}

    async def test_a_commit_without_origin_is_a_head_without_origin(self, store: Store) -> None:
        await commit(store, 0)
        head = await store.load_head(THREAD, USER)
        assert head is not None
        assert head.origin is None

    async def test_a_commit_on_the_version_of_a_deleted_thread_writes_nothing(self, store: Store) -> None:
        """Deleted and made again, the thread has the same version, but another row."""
        first = await commit(store, 0, {"n": "old"})
        assert await store.delete_thread(THREAD, None)
        again = await commit(store, 0, {"n": "new"}, expected_state_id=0)
        with pytest.raises(HeadMoved) as moved:
            await commit(store, 1, {"n": "old, changed"}, expected_state_id=first.state_id)
        assert moved.value.head.state_id == again.state_id
        assert (await commit(store, 1, {"n": "new, changed"}, expected_state_id=again.state_id)).version == 2

    @pytest.mark.parametrize("expected_version", [0, 1, 3, 7])
    async def test_a_commit_on_another_version_writes_nothing(self, store: Store, expected_version: int) -> None:
        await commit(store, 0, messages=[message("m1")], results=[entry("m1:a", "first")])
        await commit(store, 1, {"n": 2}, by=origin("winner", run_id="other"))
        with pytest.raises(HeadMoved) as moved:
            await commit(
                store,
                expected_version,
                {"n": "lost"},
                by=origin("loser"),
                messages=[message("m1", "changed"), message("m2")],
                results=[entry("m2:b", "lost")],
            )
        head = moved.value.head
        assert (head.thread_id, head.user_id, head.version, head.fields) == (THREAD, USER, 2, None)
        assert head.origin == origin("winner", run_id="other")
        assert await state_of(store) == {"n": 2}
        assert await store.lookup(THREAD, ["m2:b"]) == {}
        rows = await store.list_messages(THREAD, USER)
        assert [(row.message_id, row.content[0]["text"]) for row in rows] == [("m1", "hi")]

    async def test_a_commit_on_a_version_of_a_missing_thread_moved_to_0(self, store: Store) -> None:
        with pytest.raises(HeadMoved) as moved:
            await commit(store, 3, messages=[message("m1")])
        assert (moved.value.head.version, moved.value.head.origin) == (0, None)
        assert await store.load_head(THREAD, None) is None
        assert await store.list_threads() == []

    async def test_a_commit_on_a_deleted_thread_does_not_bring_it_back(self, store: Store) -> None:
        await chain(store, 2)
        await store.delete_thread(THREAD, USER)
        with pytest.raises(HeadMoved) as moved:
            await commit(store, 2)
        assert moved.value.head.version == 0
        assert await store.load_head(THREAD, None) is None

    async def test_a_repeated_commit_is_replayed_and_writes_nothing(self, store: Store) -> None:
        await commit(store, 0)
        first = await commit(store, 1, {"n": "first"}, by=origin("c2"), messages=[message("m1", "first")])
        again = await commit(
            store, 1, {"n": "second"}, by=origin("c2"), messages=[message("m1", "second")], results=[entry("m1:a")]
        )
        assert again.replayed
        assert (again.state_id, again.version) == (first.state_id, 2)
        assert await state_of(store) == {"n": "first"}
        assert [row.content[0]["text"] for row in await store.list_messages(THREAD, None)] == ["first"]
        assert await store.lookup(THREAD, ["m1:a"]) == {}

    async def test_the_very_first_commit_can_be_repeated_too(self, store: Store) -> None:
        first = await commit(store, 0, by=origin("begin"))
        again = await commit(store, 0, by=origin("begin"))
        assert (again.replayed, again.state_id) == (True, first.state_id)

    @pytest.mark.parametrize(("run_id", "commit_id"), [("run-2", "c1"), ("run-1", "c2")])
    async def test_only_the_same_commit_of_the_same_run_is_a_repetition(
        self, store: Store, run_id: str, commit_id: str
    ) -> None:
        await commit(store, 0, by=origin("c1", run_id="run-1"))
        with pytest.raises(HeadMoved):
            await commit(store, 0, by=origin(commit_id, run_id=run_id))

    async def test_commits_without_origin_are_never_repetitions(self, store: Store) -> None:
        await commit(store, 0)
        with pytest.raises(HeadMoved):
            await commit(store, 0)

    async def test_threads_do_not_see_each_other(self, store: Store) -> None:
        await chain(store, 3)
        made = await commit(store, 0, {"n": "other"}, thread_id="thread-2")
        assert made.version == 1
        assert await state_of(store) == {"n": 3}
        assert await state_of(store, "thread-2") == {"n": "other"}

    async def test_old_versions_are_pruned_and_the_head_never_is(self, open_store: OpenStore) -> None:
        store = await open_store(state_history_limit=3)
        await chain(store, 5)
        assert [v.version for v in await store.list_versions(THREAD, None)] == [5, 4, 3]
        one = await open_store(state_history_limit=1)
        await commit(one, 5)
        assert [v.version for v in await one.list_versions(THREAD, None)] == [6]
        assert await state_of(one) == {"n": 6}

    async def test_twenty_versions_are_kept_by_default(self, store: Store) -> None:
        await chain(store, 22)
        assert [v.version for v in await store.list_versions(THREAD, None)] == list(range(22, 2, -1))

    async def test_limit_0_keeps_all_versions(self, open_store: OpenStore) -> None:
        store = await open_store(state_history_limit=0)
        await chain(store, 25)
        assert len(await store.list_versions(THREAD, None)) == 25

    async def test_a_state_id_never_repeats(self, store: Store) -> None:
        """A cache knows rows by this id: a repeated one would show the deleted thread's state."""
        seen: list[int] = []
        for _ in range(3):
            seen += [c.state_id for c in await chain(store, 2)]
            assert await store.delete_thread(THREAD, USER)
        assert len(set(seen)) == 6, seen

    async def test_a_thread_that_is_made_again_starts_over(self, store: Store) -> None:
        await commit(store, 0, by=origin("c1"), messages=[message("m1")], results=[entry("m1:a", "old")])
        await store.delete_thread(THREAD, USER)
        assert (await commit(store, 0, {"n": "new"}, by=origin("c1"), user_id="user-2")).replayed is False
        head = await store.load_head(THREAD, "user-2")
        assert (decoded(head), head.version if head else None) == ({"n": "new"}, 1)
        assert await message_ids(store) == []
        assert await store.lookup(THREAD, ["m1:a"]) == {}

    async def test_what_postgres_cannot_hold_is_refused_with_nothing_written(self, store: Store) -> None:
        def first(**values: object) -> Commit:
            base = {"thread_id": THREAD, "user_id": USER, "expected_version": 0, "fields": {"n": b"1"}, "origin": None}
            return Commit(**{**base, **values})  # type: ignore[arg-type]

        for refused in (
            first(thread_id="t" * 256),
            first(user_id="u" * 256),
            first(messages=[message("m" * 256)]),
            first(messages=[message("m1", role="nobody")]),
            first(messages=[message("m1"), message("m2"), message("m1")]),
            first(messages=[message("m1")], results=[entry("k" * 256)]),
        ):
            with pytest.raises(StoreError):
                await store.commit(refused)
            assert await store.load_head(refused.thread_id, None) is None, refused
        await commit(store, 0, messages=[message("m1")], results=[entry("k")])

    async def test_ids_may_have_255_characters(self, store: Store) -> None:
        thread_id, user_id, message_id = "t" * 255, "\U0001f600" * 255, "m" * 255
        await commit(store, 0, thread_id=thread_id, user_id=user_id, messages=[message(message_id)])
        await commit(store, 0, thread_id="t" * 254 + "u", user_id=user_id, messages=[message("m" * 254 + "n")])
        assert await message_ids(store, thread_id) == [message_id]
        (other, info) = await store.list_threads(user_id=user_id)
        assert (info.thread_id, other.thread_id) == (thread_id, "t" * 254 + "u")
        assert info.name.startswith("Thread ttt"), "the name is made of the id, as far as it fits"

    async def test_a_refused_first_commit_leaves_no_thread_behind(self, store: Store) -> None:
        with pytest.raises(HeadMoved) as moved:
            await commit(store, 0, expected_state_id=99)
        assert (moved.value.head.version, moved.value.head.state_id) == (0, 0)
        assert await store.load_head(THREAD, None) is None
        assert await store.list_threads() == []

    async def test_a_refused_message_leaves_no_thread_behind(self, store: Store) -> None:
        await commit(store, 0, thread_id="thread-2", messages=[message("m1")])
        with pytest.raises(MessageIdTaken):
            await commit(store, 0, messages=[message("m1")])
        assert await store.load_head(THREAD, None) is None
