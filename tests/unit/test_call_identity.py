"""Distinct calls never share a key, and one call keeps its key."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tenxgraph_temporal import Message
from tenxgraph_temporal.runtime.tools.identity import idempotency_key, ledger_key, settle_identity

IDS = st.one_of(
    st.none(),
    st.integers(),
    st.text(),
    st.sampled_from(
        ["", "call_1", "call_1_2", "call_1_3", "a:b", ":", "\0", "\ud800", "x" * 250, "x" * 300, "x" * 301]
    ),
)
MESSAGE_IDS = st.one_of(st.text(max_size=300), st.sampled_from(["m", "m:c", "m:", "x" * 60]))


def settled(message_id: str, ids: list[Any]) -> Message:
    message = Message(
        message_id=message_id,
        role="assistant",
        tools_calls=[{"id": call_id, "type": "function", "function": {"name": "f"}} for call_id in ids],
    )
    settle_identity(message, "thread")
    return message


def keys(message: Message) -> list[str]:
    found = [ledger_key(message.message_id, call["id"]) for call in message.tools_calls or []]
    assert all(key is not None for key in found)
    return [key for key in found if key]


@given(MESSAGE_IDS, st.lists(IDS, min_size=1, max_size=8))
def test_calls_of_a_message_have_keys_of_their_own(message_id: str, ids: list[Any]) -> None:
    message = settled(message_id, ids)
    made = keys(message)
    assert len(set(made)) == len(ids)
    assert all(len(key) <= 255 for key in made)
    assert all("\0" not in key and key.encode() for key in made)
    assert ":" not in message.message_id  # so the first colon of a key is the one that joins
    again = Message.model_validate_json(message.model_dump_json())
    settle_identity(again, "thread")
    assert keys(again) == made
    assert len({idempotency_key("thread", message.message_id, call["id"]) for call in again.tools_calls or []}) == len(
        ids
    )


@given(MESSAGE_IDS, MESSAGE_IDS, st.lists(IDS, min_size=1, max_size=3))
def test_messages_never_share_keys(first: str, second: str, ids: list[Any]) -> None:
    one, other = settled(first, ids), settled(second, ids)
    if one.message_id != other.message_id:
        assert not set(keys(one)) & set(keys(other))


def test_ids_that_are_fine_stay_as_they_are() -> None:
    message = settled("8f14e45f", ["call_1", "toolu_01A", "call_2"])
    assert keys(message) == ["8f14e45f:call_1", "8f14e45f:toolu_01A", "8f14e45f:call_2"]


def test_without_an_identity_there_is_no_key() -> None:
    assert ledger_key("", "call_1") is None
    assert ledger_key("m", "") is None
