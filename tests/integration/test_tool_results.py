"""What a tool may return and change, how it is kept, and how it comes back."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import math
import operator
import socket
import uuid
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from tenxgraph_temporal import AgentState, Command, Message, StateGraph, ToolResult
from tenxgraph_temporal.runtime.client import RunFailed
from tenxgraph_temporal.runtime.state.blocks import ImageBlock, MediaRef

from ..support.app import App
from ..support.graphs import agent, call, results


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


class Model(BaseModel):
    when: datetime.date = datetime.date(2026, 1, 2)


cycle: list[Any] = []
cycle.append(cycle)


RETURNED: dict[str, tuple[Callable[[], Any], str]] = {
    "text": (lambda: "text", "text"),
    "nul": (lambda: "a\0b", "a\ufffdb"),
    "surrogate": (lambda: "a\ud800b", "a\ufffdb"),
    "none": (lambda: None, "null"),
    "number": (lambda: 1.5, "1.5"),
    "bool": (lambda: True, "true"),
    "nan": (lambda: {"x": math.nan, "y": math.inf}, '{"x":"NaN","y":"Infinity"}'),
    "big": (lambda: 2**200, str(2**200)),
    "decimal": (lambda: [decimal.Decimal("1.10")], '["1.10"]'),
    "datetime": (
        lambda: {"at": datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))},
        '{"at":"2026-01-02T00:00:00+02:00"}',
    ),
    "set": (lambda: {1}, "[1]"),
    "tuple": (lambda: (1, "a"), '[1,"a"]'),
    "uuid": (lambda: [uuid.UUID(int=1)], '["00000000-0000-0000-0000-000000000001"]'),
    "enum": (lambda: [Colour.RED], '["red"]'),
    "dataclass": (lambda: Point(1), '{"x":1}'),
    "pydantic": (lambda: Model(), '{"when":"2026-01-02"}'),
    "message": (lambda: Message.text_message("said", role="assistant"), "said"),
    "result": (lambda: ToolResult(message="told"), "told"),
    "bytes": (lambda: b"\xff\x00", "data"),
    "block": (lambda: ImageBlock(media=MediaRef(url="http://x/y.png")), "http://x/y.png"),
    "function": (lambda: print, "cannot be stored"),
    "socket": (lambda: socket.socket(), "cannot be stored"),
    "cycle": (lambda: cycle, "cannot be stored"),
    "huge": (lambda: 10**5000, "cannot be stored"),
    "unknown field": (lambda: ToolResult(message="x", state={"nope": 1}), "cannot be stored"),
}


@pytest.mark.parametrize("kind", RETURNED)
@pytest.mark.filterwarnings("ignore:unclosed <socket")
async def test_what_a_tool_may_return_is_kept_and_comes_back_equal(app: App, kind: str) -> None:
    make, shown = RETURNED[kind]
    ran: list[str] = []

    def act() -> Any:
        ran.append("ran")
        return make()

    graph = agent([act], [call("act", "1")])
    thread_id, first = await app.run(graph)
    assert ran == ["ran"]
    assert shown in results(first)[0]
    (record,) = await app.store.calls(thread_id)
    assert record.status == ("failed" if shown == "cannot be stored" else "finished")
    # The same envelope as a replay reads it, against what the first run put into the conversation.
    answer = next(message for message in first.context if message.role == "tool")
    assert Message.model_validate(record.envelope["value"] if record.envelope else None) == answer


async def test_results_are_in_call_order_whatever_the_order_of_completion(app: App) -> None:
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        if seconds == 0.1:
            raise RuntimeError("in the middle")
        return str(seconds)

    calls = [call("wait", str(i), seconds=s) for i, s in enumerate((0.3, 0.1, 0.2, 0.0))]
    _, state = await app.run(agent([wait], calls))
    first, second, third, fourth = results(state)
    assert (first, third, fourth) == ("0.3", "0.2", "0.0")
    assert "in the middle" in second


class Typed(AgentState):
    count: int = 0
    notes: Annotated[list[str], operator.add] = []


async def test_changes_without_a_copy_of_the_state(app: App) -> None:
    """A tool that does not ask for the state may still change it."""

    def set_it() -> ToolResult:
        return ToolResult(message="set", state={"count": 3})

    def add_it(note: str) -> Command:
        return Command(update={"notes": [note]}, message="added")

    calls = [call("set_it", "1"), call("add_it", "2", note="a"), call("add_it", "3", note="b")]
    _, state = await app.run(agent([set_it, add_it], calls, calls, state=Typed))
    assert isinstance(state, Typed)
    assert (state.count, state.notes) == (3, ["a", "b", "a", "b"])


async def test_a_field_that_cannot_hold_its_value_is_the_tools_error_and_nothing_else(app: App) -> None:
    def spoil(state: Typed) -> str:
        state.count = "many"  # type: ignore[assignment]
        return "spoilt"

    _, state = await app.run(agent([spoil], [call("spoil", "1")], state=Typed))
    assert isinstance(state, Typed)
    assert "cannot be stored" in results(state)[0]
    assert state.count == 0
    assert state.execution_meta.status == "completed"


async def test_a_node_cannot_spoil_the_thread(app: App) -> None:
    def spoil(state: Typed) -> None:
        state.count = "many"  # type: ignore[assignment]

    builder = StateGraph(Typed, name="g")
    builder.add_node("spoil", spoil).set_entry_point("spoil")
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        with pytest.raises(RunFailed, match="field 'count' of Typed was given a value that it cannot hold"):
            await (await app.start("g", thread_id)).result()
    assert (await app.state(thread_id, Typed)).execution_meta.status == "error"


def in_step(old: int, new: int) -> int:
    """A reducer that refuses most values."""
    if new not in (old, old + 1):
        raise LookupError(f"{new} does not follow {old}")
    return new


class Counting(AgentState):
    count: Annotated[int, in_step] = 0


class Adding(AgentState):
    count: Annotated[int, operator.add] = 0


async def test_a_reducer_that_raises_is_named(app: App) -> None:
    ran: list[str] = []

    def to_one(state: Counting) -> str:
        state.count = 1
        ran.append("to_one")
        return "set"

    def to_five(state: Counting) -> str:
        state.count = 5
        ran.append("to_five")
        return "set"

    def asks_for_five() -> Command:
        return Command(update={"count": 5})

    raised = "the reducer of field 'count' raised LookupError: 5 does not follow "
    _, state = await app.run(agent([asks_for_five], [call("asks_for_five", "1")], state=Counting))
    assert raised + "0" in results(state)[0], "the model can react"

    builder = StateGraph(Counting, name="g")
    builder.add_node("jump", lambda state: {"count": 5}).set_entry_point("jump")
    apart = agent([to_one, to_five], [call("to_one", "1"), call("to_five", "2")], state=Counting)
    async with app.worker(builder.compile(), apart):
        with pytest.raises(RunFailed, match=f"node 'jump' returned what its state cannot take: {raised}0"):
            await (await app.start("g", app.thread())).result()
        with pytest.raises(RunFailed, match=r"input\['state'\] does not fit: " + raised + "0"):
            await (await app.start("g", app.thread(), state={"count": 5})).result()
        thread_id = app.thread()
        with pytest.raises(RunFailed, match=f"node 'tools': what a tool changed .* cannot be kept: {raised}1"):
            await (await app.start("agent", thread_id)).result()
    ran.clear()
    mended = agent([to_one, to_five], [call("to_one", "1"), call("to_five", "2")], state=Adding, once=True)
    async with app.worker(mended):
        await (await app.start("agent", thread_id, "go on")).result()
    mended_state = await app.state(thread_id, Adding)
    assert (results(mended_state), mended_state.count, ran) == (["set", "set"], 6, []), "not lost, and not run again"
