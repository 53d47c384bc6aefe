"""State as JSON: what changed, and numbers that Python would refuse to read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenxgraph_temporal.runtime.errors import EncodingError
from tenxgraph_temporal.runtime.state.encoding import changes, dump_json, load_json

# Postgres holds no NUL: what is stored in its place is not what is tested here.
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=6,
)
states = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


@given(states, states, st.dictionaries(st.sampled_from("abcd"), st.lists(values, max_size=3), max_size=4))
def test_the_changes_applied_to_the_base_give_the_state(
    base: dict[str, Any], other: dict[str, Any], more: dict[str, list[Any]]
) -> None:
    state = {**base, **other}
    for name, items in more.items():
        if isinstance(base.get(name), list):
            state[name] = base[name] + items
    encoded = [{name: dump_json(value) for name, value in fields.items()} for fields in (base, state)]
    found = json.loads(changes(*encoded))
    assert found["set"].keys().isdisjoint(found["append"])
    appended = {name: base[name] + items for name, items in found["append"].items()}
    assert {**base, **found["set"], **appended} == state
    same = {name for name in base if base[name] == state[name]}
    assert same.isdisjoint(found["set"]) and same.isdisjoint(found["append"])
    longer = {name for name, items in more.items() if items and isinstance(base.get(name), list) and base[name]}
    assert longer - other.keys() <= found["append"].keys()


@pytest.mark.parametrize("offset", [0, 1, 57, 99, 100, 12_345])
def test_a_number_too_long_to_read_is_found_wherever_it_is(offset: int) -> None:
    filler = "x" * offset
    assert load_json(dump_json([filler, int("9" * 3999)])) == [filler, int("9" * 3999)]
    with pytest.raises(EncodingError, match="4000 digits"):
        dump_json([filler, 10**4300])
    digits = "7" * 5000
    assert load_json(dump_json([filler, digits])) == [filler, digits]
