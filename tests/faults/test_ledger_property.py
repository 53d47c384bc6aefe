"""Whatever the calls, results and crashes: each call's record is its own, none runs again, nothing is lost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenxgraph_temporal import ToolContext
from tenxgraph_temporal.activities.attempt import CutShort

from ..support.app import App
from ..support.graphs import agent, call

CALL_IDS = st.one_of(st.sampled_from(["", "call_1", "call_2", "a:b", "x" * 300]), st.text(max_size=12))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.tuples(CALL_IDS, VALUES, st.booleans())
TURNS = st.lists(st.lists(CALLS, min_size=1, max_size=4), min_size=1, max_size=2)
CRASHES = st.sets(
    st.tuples(
        st.sampled_from(["record", "commit", "load_call"]), st.integers(0, 8), st.sampled_from(["before", "after"])
    ),
    max_size=3,
)


@dataclass
class Crashing:
    """A store under whose calls the attempt dies: before a statement, or after it and before its reply."""

    store: Any
    crashes: set[tuple[str, int, str]]

    def __post_init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.recorded: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def record(self, thread_id: str, entry: Any) -> Any:
        return await self._crashing("record", thread_id, entry)

    async def commit(self, commit: Any) -> Any:
        return await self._crashing("commit", commit)

    async def load_call(self, *arguments: Any) -> Any:
        return await self._crashing("load_call", *arguments)

    async def _crashing(self, name: str, *arguments: Any) -> Any:
        number = self.counts[name] = self.counts.get(name, -1) + 1
        if (name, number, "before") in self.crashes:
            raise CutShort(f"before {name} {number}")
        result = await getattr(self.store, name)(*arguments)
        if name == "record":
            self.recorded.add(arguments[1].ledger_key)
        if (name, number, "after") in self.crashes:
            raise CutShort(f"after {name} {number}")
        return result


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(turns=TURNS, crashes=CRASHES)
async def test_any_calls_under_any_crashes(app: App, turns: list[Any], crashes: set[tuple[str, int, str]]) -> None:
    again: list[str] = []
    runs: list[tuple[int, int]] = []
    store = Crashing(app.store, crashes)

    def act(turn: int, number: int, context: ToolContext) -> Any:
        key = f"{context.message_id}:{context.tool_call_id}"
        if key in store.recorded:
            again.append(key)
        runs.append((turn, number))
        _, value, fails = turns[turn][number]
        if fails:
            raise RuntimeError(f"failure {turn}.{number}")
        return {"turn": turn, "number": number, "value": value}

    asked = [
        [call("act", call_id, turn=turn, number=number) for number, (call_id, _, _) in enumerate(calls)]
        for turn, calls in enumerate(turns)
    ]
    graph = agent([act], *asked)
    thread_id = app.thread()
    async with app.worker(graph, store=store):
        await (await app.start("agent", thread_id)).result()

    assert not again, again
    total = sum(map(len, turns))
    assert len(set(runs)) == total
    lost = sum(1 for name, _, when in crashes if (name, when) == ("record", "before"))
    assert len(runs) <= total + lost, (runs, crashes)
    records = await app.store.calls(thread_id)
    assert len(records) == total, [record.ledger_key for record in records]
    state = await app.state(thread_id)
    expected = ["user"]
    for calls in turns:
        expected += ["assistant", *["tool"] * len(calls)]
    assert [message.role for message in state.context] == [*expected, "assistant"]
    answers = [message for message in state.context if message.role == "tool"]
    flat = [(turn, number, *calls[number]) for turn, calls in enumerate(turns) for number in range(len(calls))]
    for message, (turn, number, _, value, fails) in zip(answers, flat, strict=True):
        if fails:
            assert f"failure {turn}.{number}" in message.text()
        else:
            said = json.loads(message.text())
            assert (said["turn"], said["number"]) == (turn, number)
            assert said["value"] == _as_stored(value)
    rows = await app.store.list_messages(thread_id, None)
    assert [row.message_id for row in rows] == [message.message_id for message in state.context]


def _as_stored(value: Any) -> Any:
    """``value`` with what Postgres cannot hold replaced, as the encoding documents."""
    if isinstance(value, str):
        return "".join("\ufffd" if char == "\0" or "\ud800" <= char <= "\udfff" else char for char in value)
    if isinstance(value, list):
        return [_as_stored(item) for item in value]
    if isinstance(value, dict):
        return {_as_stored(key): _as_stored(item) for key, item in value.items()}
    return value
