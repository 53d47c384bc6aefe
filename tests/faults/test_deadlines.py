"""Deadlines of nodes and tools, and what becomes of nodes and tools that raise."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tenxgraph_temporal import END, AgentState, CompiledGraph, Retry, StateGraph, ToolNode, tool
from tenxgraph_temporal.runtime.client import RunFailed
from tenxgraph_temporal.runtime.limits import UNSET

from ..support.app import App
from ..support.graphs import agent, asks, call


def one_node(function: Callable[..., Any], **options: Any) -> CompiledGraph:
    builder = StateGraph(name="one")
    builder.add_node("step", function, **options)
    return builder.set_entry_point("step").add_edge("step", END).compile()


def tool_texts(state: AgentState) -> list[str]:
    return [message.text() for message in state.context if message.role == "tool"]


async def failed(app: App, graph: CompiledGraph, **options: Any) -> tuple[str, RunFailed, float]:
    """The thread and failure of a run that has to fail, and how long it took."""
    thread_id = app.thread()
    async with app.worker(graph):
        started = time.monotonic()
        run = await app.start(graph.name, thread_id, **options)
        with pytest.raises(RunFailed) as failure:
            await asyncio.wait_for(run.result(), 60)
        took = time.monotonic() - started
    return thread_id, failure.value, took


async def hang() -> str:
    await asyncio.sleep(60)
    return "late"


@pytest.mark.parametrize(
    ("own", "config"),
    [
        ({"timeout": 0.3}, {}),
        ({"timeout": timedelta(seconds=0.3)}, {}),
        ({}, {"tool_timeout": 0.3}),
        ({"timeout": 60}, {"tool_timeout": 0.3}),
    ],
)
async def test_a_tool_out_of_time(app: App, own: dict[str, Any], config: dict[str, Any]) -> None:
    ran: list[int] = []

    @tool(retry=Retry(max_attempts=3), **own)
    async def slow() -> str:
        ran.append(1)
        return await hang()

    def quick() -> str:
        return "quick"

    started = time.monotonic()
    thread_id, state = await app.run(agent([slow, quick], [call("slow", "1"), call("quick", "2")]), config=config)
    assert time.monotonic() - started < 5
    assert ran == [1]
    text, other = tool_texts(state)
    assert "NODE_TIMEOUT_002" in text and "'slow'" in text and other == "quick"
    assert sorted(c.status for c in await app.store.calls(thread_id)) == ["finished", "timeout"]
    assert state.execution_meta.status == "completed"


@pytest.mark.parametrize("config", [{"node_timeout": 0.3}, {}])
async def test_a_node_out_of_time(app: App, config: dict[str, Any]) -> None:
    ran: list[int] = []

    async def slow(state: AgentState) -> str:
        ran.append(1)
        return await hang()

    own = {} if config else {"timeout": 0.3}
    thread_id, failure, took = await failed(app, one_node(slow, **own), config=config)
    assert took < 5
    assert failure.code == "NODE_TIMEOUT_001" and "'step'" in str(failure)
    assert ran == [1]
    meta = (await app.state(thread_id)).execution_meta
    assert (meta.status, meta.current_node) == ("error", "step")
    assert "NODE_TIMEOUT_001" in meta.internal_data["error"]


async def test_a_node_out_of_time_in_a_thread(app: App) -> None:
    release = threading.Event()
    thread_id, failure, took = await failed(app, one_node(lambda state: release.wait(60) and "late", timeout=0.3))
    assert took < 9  # the deadline and the grace
    head = await app.head(thread_id)
    release.set()
    await asyncio.sleep(0.3)
    assert (await app.head(thread_id)).version == head.version
    assert failure.code == "NODE_TIMEOUT_001"


@pytest.mark.parametrize("config", [{"node_timeout": 0.5}, {}])
async def test_a_tool_node_out_of_time(app: App, config: dict[str, Any]) -> None:
    """With all its tools: none of them may take longer than the whole step."""
    cancelled: list[str] = []

    async def slow() -> str:
        try:
            return await hang()
        except asyncio.CancelledError:
            cancelled.append("slow")
            raise

    def quick() -> str:
        return "quick"

    builder = StateGraph(name="g")
    builder.add_node("model", lambda state: asks(call("slow", "1"), call("quick", "2"), call("slow", "3")))
    builder.add_node("tools", ToolNode([slow, quick]), timeout=UNSET if config else 0.5)
    builder.set_entry_point("model").add_edge("model", "tools").add_edge("tools", END)
    thread_id, failure, took = await failed(app, builder.compile(), config=config)
    assert took < 6
    assert failure.code == "NODE_TIMEOUT_001" and "'tools'" in str(failure)
    assert cancelled == ["slow", "slow"]
    meta = (await app.state(thread_id)).execution_meta
    assert (meta.status, meta.current_node) == ("error", "tools")
    assert "NODE_TIMEOUT_001" in meta.internal_data["error"]
    assert [c.status for c in await app.store.calls(thread_id)] == ["finished"]


@pytest.mark.parametrize("off", [None, 0, -1])
async def test_a_deadline_can_be_switched_off(app: App, off: Any) -> None:
    """By the run's config, over what the node and the tool say of themselves."""

    @tool(timeout=0.2)
    async def slow() -> str:
        await asyncio.sleep(0.6)
        return "took its time"

    async def slow_node(state: AgentState) -> Any:
        await asyncio.sleep(0.6)
        return asks(call("slow", "1"))

    builder = StateGraph(name="g")
    builder.add_node("model", slow_node, timeout=0.2).add_node("tools", ToolNode([slow]), timeout=0.2)
    builder.set_entry_point("model").add_edge("model", "tools").add_edge("tools", END)
    config = {"tool_timeout": off, "node_timeout": off}
    _, state = await app.run(builder.compile(), config=config)
    assert tool_texts(state) == ["took its time"]


@pytest.mark.parametrize("off", [None, 0, -1])
async def test_a_tool_may_switch_its_own_deadline_off(app: App, off: Any) -> None:
    @tool(timeout=off)
    async def slow() -> str:
        await asyncio.sleep(0.3)
        return "took its time"

    _, state = await app.run(agent([slow], [call("slow", "1")]))
    assert tool_texts(state) == ["took its time"]


async def test_a_tool_that_ignores_its_deadline(app: App) -> None:
    """It is abandoned, and what it returns later is nobody's result."""
    release, ended = threading.Event(), threading.Event()

    def deaf() -> str:
        while not release.is_set():
            time.sleep(0.01)
        ended.set()
        return "late"

    thread_id = app.thread()
    async with app.worker(agent([deaf], [call("deaf", "1")]), cancel_grace=timedelta(seconds=0.5)):
        run = await app.start("agent", thread_id, config={"tool_timeout": 0.3})
        await asyncio.wait_for(run.result(), 15)
        release.set()
        assert await asyncio.to_thread(ended.wait, 10)
        await asyncio.sleep(0.3)
        (record,) = await app.store.calls(thread_id)
    assert record.status == "timeout"
    (text,) = tool_texts(await app.state(thread_id))
    assert "NODE_TIMEOUT_002" in text
    lookup = await app.store.lookup(thread_id, [record.ledger_key])
    assert "late" not in str(lookup).replace("later", "")


class Busy(ConnectionError):
    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


RETRY = Retry(max_attempts=3, on=(ConnectionError,), interval=0.05)


async def test_a_node_is_retried_if_it_asks_for_it(app: App) -> None:
    at: list[float] = []

    def flaky(state: AgentState) -> str:
        at.append(time.monotonic())
        if len(at) < 3:
            raise Busy(1.0 if len(at) == 1 else None)
        return "third time lucky"

    _, state = await app.run(one_node(flaky, retry=RETRY))
    assert state.context[-1].text() == "third time lucky"
    assert len(at) == 3
    assert 0.9 < at[1] - at[0] < 2.5
    assert at[2] - at[1] < 2  # the server fires timers up to a second late


@pytest.mark.parametrize(("error", "attempts"), [(Busy(), 3), (ValueError("wrong"), 1)])
async def test_a_node_that_goes_on_failing(app: App, error: Exception, attempts: int) -> None:
    ran: list[int] = []

    def broken(state: AgentState) -> str:
        ran.append(1)
        raise error

    thread_id, failure, _ = await failed(app, one_node(broken, retry=RETRY))
    assert len(ran) == attempts
    assert failure.code == "NODE_001"
    assert f"node 'step' failed: {type(error).__name__}" in str(failure)
    meta = (await app.state(thread_id)).execution_meta
    assert (meta.status, meta.current_node) == ("error", "step")


async def test_a_node_is_not_retried_by_itself(app: App) -> None:
    ran: list[int] = []

    def broken(state: AgentState) -> str:
        ran.append(1)
        raise ConnectionError("busy")

    await failed(app, one_node(broken))
    assert ran == [1]


async def test_a_tool_is_retried_if_it_asks_for_it(app: App) -> None:
    at: list[float] = []
    other: list[int] = []

    @tool(retry=RETRY)
    def flaky() -> str:
        at.append(time.monotonic())
        if len(at) < 3:
            raise Busy(1.0 if len(at) == 1 else None)
        return "third time lucky"

    @tool(retry=RETRY)
    def broken() -> str:
        other.append(1)
        raise ValueError("wrong")

    thread_id, state = await app.run(agent([flaky, broken], [call("flaky", "1"), call("broken", "2")]))
    assert len(at) == 3 and len(other) == 1
    assert 0.9 < at[1] - at[0] < 2.5
    lucky, wrong = tool_texts(state)
    assert lucky == "third time lucky"
    assert "ValueError: wrong" in wrong
    records = {c.tool: (c.status, c.attempt) for c in await app.store.calls(thread_id)}
    assert records == {"flaky": ("finished", 3), "broken": ("failed", 1)}


async def test_a_tool_that_goes_on_failing_is_told_to_the_model(app: App) -> None:
    ran: list[int] = []

    @tool(retry=RETRY)
    async def broken() -> str:
        ran.append(1)
        raise Busy()

    _, state = await app.run(agent([broken], [call("broken", "1")]))
    assert len(ran) == 3
    assert "Busy: busy" in tool_texts(state)[0]
    assert state.execution_meta.status == "completed"
