"""Values come back as they were stored: large ones, foreign ones, exact ones."""

from __future__ import annotations

from typing import Any

import pytest

from ..storage.contract import LedgerEntry, Store
from ._samples import THREAD, USER, commit, decoded, entry, message

TEXTS = [
    "",
    "plain",
    'quote " backslash \\ slash /',
    "\\u0041 is not an A, \\n no line",
    "tab\tline\nreturn\r",
    "\x01\x1f\x7f control",
    "é ß 漢字 العربية \U0001f600 e\u0301 \u200d \ufeff \uffff",
    "'; DROP TABLE threads; -- %s $1 ?",
]
INTEGERS = [0, 1, -1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64 + 1, 10**30 + 7, 10**400 + 1]
FLOATS = [0.5, 1.0, -1.25, 0.1, 0.1 + 0.2, 1 / 3, 1e-7, 5e-324, 1e15, 123456789.123456789]
LARGE_FLOATS = [1e16, 1e22, 1e23, 1.5e300, 1.7976931348623157e308]


class ValuesConformance:
    """Fidelity of what is stored."""

    @pytest.mark.parametrize("text", TEXTS, ids=ascii)
    async def test_texts(self, store: Store, text: str) -> None:
        value = {"text": text, f"key {text}": [text]}
        await commit(
            store,
            0,
            {"field": value},
            messages=[message("m1", text, reasoning=text, meta={text: text})],
            results=[entry("k", value)],
            thread_meta={"text": text},
        )
        assert decoded(await store.load_head(THREAD, USER)) == {"field": value}
        (row,) = await store.list_messages(THREAD, USER)
        assert (row.content[0]["text"], row.reasoning, row.meta) == (text, text, {text: text})
        assert await store.lookup(THREAD, ["k"]) == {"k": entry("k", value).envelope}
        (info,) = await store.list_threads()
        assert info.meta == {"text": text}

    async def test_ids_of_any_language(self, store: Store) -> None:
        thread_id, user_id, message_id = "漢字 \U0001f600 'x'", "Ünal %s", 'm"1\\'
        await commit(store, 0, thread_id=thread_id, user_id=user_id, messages=[message(message_id)])
        head = await store.load_head(thread_id, user_id)
        assert head is not None
        assert (head.thread_id, head.user_id) == (thread_id, user_id)
        assert [m.message_id for m in await store.list_messages(thread_id, user_id)] == [message_id]

    @pytest.mark.parametrize("numbers", [INTEGERS, FLOATS], ids=["integers", "floats"])
    async def test_numbers_are_exact(self, store: Store, numbers: list[Any]) -> None:
        await commit(store, 0, {"numbers": numbers}, messages=[message("m1", meta={"n": numbers})])
        await store.record(THREAD, entry("k", numbers))
        found = (
            decoded(await store.load_head(THREAD, USER))["numbers"],
            (await store.list_messages(THREAD, USER))[0].meta["n"],
            (await store.lookup(THREAD, ["k"]))["k"]["value"],
        )
        for back in found:
            assert back == numbers
            assert [type(n) for n in back] == [type(n) for n in numbers]

    async def test_large_floats_keep_their_value(self, store: Store) -> None:
        """A database of decimals may write them without an exponent; read as floats they are the same."""
        await commit(store, 0, {"numbers": LARGE_FLOATS})
        back = decoded(await store.load_head(THREAD, USER))["numbers"]
        assert [float(n) for n in back] == LARGE_FLOATS

    async def test_empty_and_null_are_told_apart(self, store: Store) -> None:
        fields: dict[str, Any] = {"null": None, "list": [], "object": {}, "text": "", "zero": 0, "false": False}
        await commit(store, 0, fields)
        assert decoded(await store.load_head(THREAD, USER)) == fields

    async def test_a_state_without_fields(self, store: Store) -> None:
        await commit(store, 0, {"a": 1})
        await commit(store, 1, {"b": 2})
        assert decoded(await store.load_head(THREAD, USER)) == {"b": 2}, "a state replaces, it does not merge"

    async def test_megabytes(self, store: Store) -> None:
        text = "0123456789abcdef é漢" * 280_000  # more than 5 MB as UTF-8
        assert len(text.encode()) > 5_000_000
        await commit(store, 0, {"blob": text, "n": 1}, messages=[message("m1", text)])
        await store.record(THREAD, entry("k", text))
        assert decoded(await store.load_head(THREAD, USER)) == {"blob": text, "n": 1}
        assert (await store.list_messages(THREAD, USER))[0].content[0]["text"] == text
        assert (await store.lookup(THREAD, ["k"]))["k"]["value"] == text
        assert (await store.list_versions(THREAD, USER))[0].size_bytes > 5_000_000

    async def test_deeply_nested(self, store: Store) -> None:
        value: Any = "bottom"
        for _ in range(80):
            value = {"in": [value]}
        await commit(store, 0, {"deep": value}, results=[entry("k", value)])
        assert decoded(await store.load_head(THREAD, USER)) == {"deep": value}
        assert (await store.lookup(THREAD, ["k"]))["k"]["value"] == value

    async def test_what_a_caller_changes_later_is_not_stored(self, store: Store) -> None:
        envelope: dict[str, Any] = {"__kind__": "raw", "value": ["stored"]}
        meta: dict[str, Any] = {"k": ["stored"]}
        await commit(store, 0, messages=[message("m1", meta=meta)])
        await store.record(THREAD, LedgerEntry(ledger_key="k", envelope=envelope))
        envelope["value"].append("changed")
        meta["k"].append("changed")
        (await store.lookup(THREAD, ["k"]))["k"]["value"].append("changed")
        assert (await store.lookup(THREAD, ["k"]))["k"]["value"] == ["stored"]
        assert (await store.list_messages(THREAD, USER))[0].meta == {"k": ["stored"]}
