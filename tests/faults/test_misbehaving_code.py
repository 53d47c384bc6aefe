"""Code that does what no code in a worker should do: it costs itself, not its worker nor the steps beside it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import pytest

from tenxgraph_temporal import END, AgentState, StateGraph, ToolContext
from tenxgraph_temporal.runtime.client import RunFailed

from ..support.app import App
from ..support.graphs import agent, call


class Unprintable(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


class NoException(BaseException):
    pass


def exits() -> None:
    sys.exit(3)


def parses() -> None:
    argparse.ArgumentParser().parse_args(["--unknown"])


def unprintable() -> None:
    raise Unprintable


def odd() -> None:
    raise NoException("odd")


def cancelled() -> None:
    raise asyncio.CancelledError


BAD = [
    (exits, "SystemExit(3)"),
    (parses, "SystemExit(2)"),
    (unprintable, "Unprintable"),
    (odd, "NoException('odd')"),
    (cancelled, "ancelled"),
]


@pytest.mark.parametrize(("bad", "said"), BAD)
async def test_a_tool_that_would_end_its_worker(app: App, bad: Any, said: str) -> None:
    """It fails, once, and is told to the model; the worker lives, and what ran beside it goes on."""
    ran: list[str] = []

    def in_thread() -> str:
        ran.append("thread")
        bad()
        return "never"

    async def in_loop() -> str:
        ran.append("loop")
        await asyncio.sleep(0.05)
        bad()
        return "never"

    async def beside() -> str:
        await asyncio.sleep(1)
        return "went on"

    calls = [call("in_thread", "1"), call("in_loop", "2"), call("beside", "3")]
    thread_id, state = await app.run(agent([in_thread, in_loop, beside], calls))
    first, second, third = [message.text() for message in state.context if message.role == "tool"]
    assert "'in_thread' failed" in first and said in first
    assert "'in_loop' failed" in second and said in second
    assert third == "went on"
    assert sorted(ran) == ["loop", "thread"]
    records = {record.tool: (record.status, record.attempt) for record in await app.store.calls(thread_id)}
    assert records == {"in_thread": ("failed", 1), "in_loop": ("failed", 1), "beside": ("finished", 1)}


@pytest.mark.parametrize(
    ("where", "bad", "said"),
    [*((where, *one) for where in ("thread", "loop") for one in BAD), ("router", exits, "SystemExit: 3")],
)
async def test_a_node_that_would_end_its_worker(app: App, where: str, bad: Any, said: str) -> None:
    ran: list[str] = []

    def in_thread(state: AgentState) -> str:
        ran.append("thread")
        bad()
        return "never"

    async def in_loop(state: AgentState) -> str:
        ran.append("loop")
        bad()
        return "never"

    def fine(state: AgentState) -> str:
        return "fine"

    def router(state: AgentState) -> str:
        bad()
        return "never"

    builder = StateGraph(name="g")
    builder.add_node("step", {"thread": in_thread, "loop": in_loop, "router": fine}[where])
    builder.set_entry_point("step")
    if where == "router":
        builder.add_conditional_edges("step", router, [END])
    else:
        builder.add_edge("step", END)
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        run = await app.start("g", thread_id)
        with pytest.raises(RunFailed) as failure:
            await asyncio.wait_for(run.result(), 30)
        assert said in str(failure.value) and "step" in str(failure.value), failure.value
        assert len(ran) <= 1
        assert (await app.state(thread_id)).execution_meta.status == "error"
        if where != "router":
            assert failure.value.code == "NODE_001"


async def test_progress_that_cannot_be_reported(app: App) -> None:
    """The code is told at once; found later, it would cost the finished attempt, and the run."""

    class Opaque:
        pass

    def opaque(context: ToolContext) -> str:
        context.heartbeat(Opaque())
        return "never"

    async def huge(context: ToolContext) -> str:
        context.heartbeat("x" * 3_000_000)
        return "never"

    async def fine(context: ToolContext) -> str:
        context.heartbeat({"chunk": 7}, "x" * 100_000)
        return "fine"

    calls = [call("opaque", "1"), call("huge", "2"), call("fine", "3")]
    _, state = await app.run(agent([opaque, huge, fine], calls))
    first, second, third = [message.text() for message in state.context if message.role == "tool"]
    assert "'opaque' failed: ValueError: heartbeat details must be JSON" in first
    assert "'huge' failed: ValueError: heartbeat details of 30000" in second
    assert third == "fine"
