"""Messages: in step with the state, and each thread's own."""

from __future__ import annotations

import pytest

from ..storage.contract import MessageIdTaken, MessageRow, Store
from ._samples import THREAD, USER, commit, entry, message, message_ids, state_of


class MessagesConformance:
    """The messages of a commit."""

    async def test_messages_come_back_as_they_were_written(self, store: Store) -> None:
        rows = [
            MessageRow(
                message_id="m1",
                role="assistant",
                content=[{"type": "text", "text": "hi", "annotations": []}],
                tool_calls=[{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
                reasoning="because",
                total_tokens=12,
                usages={"total_tokens": 12, "deep": {"list": [1, None]}},
                meta={"k": "v"},
            ),
            MessageRow(message_id="m2", role="tool", content=[]),
            MessageRow(message_id="m3", role="system", content=[{"type": "text", "text": ""}], tool_calls=[]),
        ]
        await commit(store, 0, messages=rows)
        assert await store.list_messages(THREAD, USER) == rows

    async def test_messages_are_listed_in_the_order_they_were_written(self, store: Store) -> None:
        ids = [f"m{9 - n}" for n in range(10)]  # neither sorted by name nor written by one commit
        await commit(store, 0, messages=[message(key) for key in ids[:4]])
        await commit(store, 1, messages=[message(key) for key in ids[4:5]])
        await commit(store, 2, messages=[message(key) for key in ids[5:]])
        assert await message_ids(store) == ids

    async def test_messages_are_listed_page_by_page(self, store: Store) -> None:
        await commit(store, 0, messages=[message(f"m{n}") for n in range(7)])
        pages: list[list[str]] = []
        after: str | None = None
        while rows := await store.list_messages(THREAD, USER, limit=3, after=after):
            pages.append([row.message_id for row in rows])
            after = rows[-1].message_id
        assert pages == [["m0", "m1", "m2"], ["m3", "m4", "m5"], ["m6"]]

    async def test_writing_a_message_again_updates_what_it_says_and_no_more(self, store: Store) -> None:
        """As in 10xGraph. Its calls stay: their identity was settled when they were written first."""
        first = message("m1", "one", role="assistant", tool_calls=[{"id": "c1"}], total_tokens=1, meta={"k": 1})
        await commit(store, 0, messages=[first, message("m2")])
        again = {"tool_calls": [{"id": "c2"}], "total_tokens": 2, "meta": {"k": 2}, "role": "user"}
        await commit(store, 1, messages=[message("m1", "two", reasoning="why", usages={"n": 1}, **again)])
        row, other = await store.list_messages(THREAD, USER)
        assert (row.message_id, other.message_id) == ("m1", "m2"), "its place stays, too"
        assert (row.content[0]["text"], row.reasoning, row.usages) == ("two", "why", {"n": 1})
        assert (row.role, row.tool_calls, row.total_tokens, row.meta) == ("assistant", [{"id": "c1"}], 1, {"k": 1})

    async def test_a_message_id_of_another_thread_refuses_the_whole_commit(self, store: Store) -> None:
        await commit(store, 0, thread_id="thread-2", messages=[message("m1", "theirs"), message("m2", "theirs")])
        await commit(store, 0, {"n": 1}, messages=[message("own")])
        with pytest.raises(MessageIdTaken) as taken:
            await commit(
                store,
                1,
                {"n": 2},
                messages=[message("m1", "mine"), message("new"), message("m2", "mine"), message("own", "changed")],
                results=[entry("m1:c")],
            )
        assert taken.value.message_ids == {"m1", "m2"}
        assert await state_of(store) == {"n": 1}
        assert [(r.message_id, r.content[0]["text"]) for r in await store.list_messages(THREAD, USER)] == [
            ("own", "hi")
        ]
        assert await store.lookup(THREAD, ["m1:c"]) == {}
        assert [r.content[0]["text"] for r in await store.list_messages("thread-2", None)] == ["theirs", "theirs"]
        assert (await commit(store, 1, messages=[message("new")])).version == 2

    async def test_the_ids_of_a_deleted_thread_are_free(self, store: Store) -> None:
        await commit(store, 0, thread_id="thread-2", messages=[message("m1")])
        await store.delete_thread("thread-2", None)
        await commit(store, 0, messages=[message("m1")])
        assert await message_ids(store) == ["m1"]

    async def test_messages_outlive_the_versions_that_brought_them(self, store: Store) -> None:
        for n in range(23):
            await commit(store, n, messages=[message(f"m{n:02}")])
        assert await message_ids(store) == [f"m{n:02}" for n in range(23)]

    async def test_listing_after_an_unknown_message_is_empty(self, store: Store) -> None:
        await commit(store, 0, messages=[message("m1")])
        await commit(store, 0, thread_id="thread-2", messages=[message("m2")])
        assert await store.list_messages(THREAD, USER, after="m2") == []
        assert await store.list_messages("nowhere", USER) == []
