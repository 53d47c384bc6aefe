"""The tool ledger: the first record of a call stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ..errors import StoreError
from ..storage.contract import Json, LedgerEntry, Store
from ._samples import THREAD, USER, commit, entry, intent, message

ENVELOPES: list[Json] = [
    {"__kind__": "raw", "value": value}
    for value in (None, True, False, 0, -1, 1.5, "", "text", [], {}, [None], {"": None}, {"a": [1, {"b": "c"}]})
] + [
    {"__kind__": "message", "value": {"message_id": "m", "content": [{"type": "text", "text": "x"}]}},
    {"__kind__": "raw", "value": 1, "state": {"field": [1, 2], "other": None}},
    {"not": "well formed"},
    [],
    0,
    "text",
]
KEYS = [
    "m1:call_1",
    "m1:",
    ":",
    "",
    " ",
    "m1:a:b:c",
    "m1:'; DROP TABLE threads; --",
    'quote " and \\ backslash',
    "percent % under _ score",
    "{s} $1 ?1 :name",
    "new\nline\ttab",
    "é 漢字 \U0001f600",
    "k" * 255,
    "\U0001f600" * 255,
]


class LedgerConformance:
    """``ToolLedger`` but claims and transactions."""

    async def test_a_call_that_was_not_recorded_is_not_there(self, store: Store) -> None:
        await commit(store, 0)
        assert await store.lookup(THREAD, ["m1:a"]) == {}
        assert await store.lookup(THREAD, []) == {}
        assert await store.lookup("nowhere", ["m1:a"]) == {}
        assert await store.calls(THREAD) == []
        assert await store.calls("nowhere") == []

    async def test_the_first_record_stays(self, store: Store) -> None:
        await commit(store, 0)
        first, second = entry("m1:a", {"sent": 1}), entry("m1:a", {"sent": 2}, status="failed", attempt=2)
        assert await store.record(THREAD, first) is None
        assert await store.record(THREAD, second) == first.envelope
        assert await store.record(THREAD, first) == first.envelope
        assert await store.lookup(THREAD, ["m1:a"]) == {"m1:a": first.envelope}
        (call,) = await store.calls(THREAD)
        assert (call.status, call.attempt, call.envelope) == ("finished", 1, first.envelope)

    @pytest.mark.parametrize("envelope", ENVELOPES, ids=repr)
    async def test_envelopes_of_every_shape(self, store: Store, envelope: Json) -> None:
        """Among them a result of null, which is a record and not the absence of one."""
        await commit(store, 0)
        assert await store.record(THREAD, LedgerEntry(ledger_key="k", envelope=envelope)) is None
        assert await store.lookup(THREAD, ["k"]) == {"k": envelope}
        assert await store.load_call(THREAD, "m1", "k") == (None, envelope)
        assert await store.record(THREAD, entry("k", "later")) == envelope

    async def test_keys_of_any_characters(self, store: Store) -> None:
        await commit(store, 0)
        for n, key in enumerate(KEYS):
            assert await store.record(THREAD, entry(key, n)) is None, key
        found = await store.lookup(THREAD, KEYS)
        assert {key: envelope["value"] for key, envelope in found.items()} == {key: n for n, key in enumerate(KEYS)}
        for key in KEYS:
            assert await store.lookup(THREAD, [key]) == {key: found[key]}

    async def test_keys_are_exact(self, store: Store) -> None:
        await commit(store, 0)
        await store.record(THREAD, entry("m1:Abc"))
        near = ["m1:abc", "m1:Abc ", " m1:Abc", "m1:Ab", "m1:Abcd", "m1:%", "m1:Ábc", "k" * 300]
        assert await store.lookup(THREAD, near) == {}

    async def test_a_key_that_is_too_long_is_refused_not_cut(self, store: Store) -> None:
        await commit(store, 0)
        with pytest.raises(StoreError):
            await store.record(THREAD, entry("k" * 256))
        with pytest.raises(StoreError):
            await store.claim(THREAD, intent("k" * 256, "me"))
        assert await store.calls(THREAD) == []

    async def test_a_key_belongs_to_its_thread(self, store: Store) -> None:
        await commit(store, 0)
        await commit(store, 0, thread_id="thread-2")
        assert await store.record(THREAD, entry("m1:a", 1)) is None
        assert await store.record("thread-2", entry("m1:a", 2)) is None
        assert (await store.lookup(THREAD, ["m1:a"]))["m1:a"]["value"] == 1
        assert (await store.lookup("thread-2", ["m1:a"]))["m1:a"]["value"] == 2

    async def test_many_keys_at_once(self, store: Store) -> None:
        keys = [f"m1:{n}" for n in range(500)]
        await commit(store, 0, results=[entry(key, key) for key in keys[:400]])
        found = await store.lookup(THREAD, [*keys, *keys])
        assert sorted(found) == sorted(keys[:400])
        assert all(found[key]["value"] == key for key in found)

    async def test_a_record_needs_its_thread(self, store: Store) -> None:
        with pytest.raises(StoreError, match="nowhere"):
            await store.record("nowhere", entry("m1:a"))
        with pytest.raises(StoreError, match="'nowhere' does not exist"):
            await store.claim("nowhere", intent("m1:a", "me"))
        with pytest.raises(StoreError, match="'nowhere' does not exist"):
            await store.put_interrupt("nowhere", "i1", {})
        assert await store.load_head("nowhere", None) is None

    async def test_a_commit_records_its_results(self, store: Store) -> None:
        await commit(store, 0)
        await store.record(THREAD, entry("m1:a", "recorded before"))
        await commit(store, 1, results=[entry("m1:a", "late"), entry("m1:b", "new", status="cancelled", tool="t")])
        found = await store.lookup(THREAD, ["m1:a", "m1:b"])
        assert {key: envelope["value"] for key, envelope in found.items()} == {"m1:a": "recorded before", "m1:b": "new"}
        assert {c.ledger_key: c.status for c in await store.calls(THREAD)} == {"m1:a": "finished", "m1:b": "cancelled"}

    async def test_a_record_is_seen_by_other_handles_at_once(self, store: Store, open_store: Any) -> None:
        await commit(store, 0)
        await store.record(THREAD, entry("m1:a", 1))
        other = await open_store()
        assert await other.lookup(THREAD, ["m1:a"]) == {"m1:a": entry("m1:a", 1).envelope}
        assert await other.record(THREAD, entry("m1:a", 2)) == entry("m1:a", 1).envelope

    async def test_load_call_reads_the_message_and_the_record(self, store: Store) -> None:
        calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        await commit(store, 0, messages=[message("m1", role="assistant", tool_calls=calls)])
        await commit(store, 0, thread_id="thread-2", messages=[message("m2", tool_calls=calls)])
        assert await store.load_call(THREAD, "m1", "m1:c1") == (calls, None)
        await store.record(THREAD, entry("m1:c1", 7))
        assert await store.load_call(THREAD, "m1", "m1:c1") == (calls, entry("m1:c1", 7).envelope)
        assert await store.load_call(THREAD, "m2", "m2:c1") == (None, None), "the message is another thread's"
        assert await store.load_call("thread-2", "m2", "m1:c1") == (calls, None)
        assert await store.load_call("nowhere", "m1", "m1:c1") == (None, None)

    async def test_calls_are_listed_oldest_first_with_who_ran_them(self, store: Store) -> None:
        await commit(store, 0)
        await store.record(THREAD, entry("z", 1, tool="mail", worker="w1"))
        await asyncio.sleep(0.002)
        await store.claim(THREAD, intent("y", "a", tool="pay", attempt=2, worker="w2"))
        await asyncio.sleep(0.002)
        for status in ("failed", "timeout", "cancelled"):
            await store.record(THREAD, entry(f"x-{status}", 2, status=status, attempt=3))
            await asyncio.sleep(0.002)
        await store.claim(THREAD, intent("a", "b", 0.001))
        await asyncio.sleep(0.02)
        calls = await store.calls(THREAD)
        assert [(c.ledger_key, c.status, c.attempt) for c in calls] == [
            ("z", "finished", 1),
            ("y", "running", 2),
            ("x-failed", "failed", 3),
            ("x-timeout", "timeout", 3),
            ("x-cancelled", "cancelled", 3),
            ("a", "in_doubt", 1),
        ]
        assert [(c.tool, c.worker) for c in calls[:2]] == [("mail", "w1"), ("pay", "w2")]
        assert calls[1].envelope is None
        assert all(c.at.tzinfo is not None for c in calls)
        assert [c.at for c in calls] == sorted(c.at for c in calls)

    async def test_replays_are_counted(self, store: Store) -> None:
        await commit(store, 0)
        await store.record(THREAD, entry("m1:a"))
        await store.record(THREAD, entry("m1:b"))
        for _ in range(3):
            await store.count_replay(THREAD, "m1:a")
        await store.count_replay(THREAD, "m1:missing")
        await store.count_replay("nowhere", "m1:a")
        assert {c.ledger_key: c.replays for c in await store.calls(THREAD)} == {"m1:a": 3, "m1:b": 0}

    async def test_the_first_request_of_an_interrupt_stays(self, store: Store) -> None:
        await commit(store, 0)
        await commit(store, 0, thread_id="thread-2")
        await store.put_interrupt(THREAD, "i1", {"value": None, "message": "ok?"})
        await store.put_interrupt(THREAD, "i1", {"value": "changed"})
        await store.put_interrupt(THREAD, "i2", {"value": [1]})
        assert await store.load_interrupts(THREAD, ["i1", "i2", "i3"]) == {
            "i1": {"value": None, "message": "ok?"},
            "i2": {"value": [1]},
        }
        assert await store.load_interrupts(THREAD, []) == {}
        assert await store.load_interrupts("thread-2", ["i1"]) == {}
        await store.delete_thread(THREAD, USER)
        assert await store.load_interrupts(THREAD, ["i1"]) == {}
