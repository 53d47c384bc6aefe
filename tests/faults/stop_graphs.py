"""Graphs for worker processes that are frozen, drained, killed and poisoned."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from tenxgraph_temporal import END, AgentState, RunContext, StateGraph, ToolContext

from ..support.graphs import agent, call, world
from ..support.world import do


async def tell(action: str, **body: Any) -> None:
    await asyncio.to_thread(do, world(), action, pid=os.getpid(), **body)


async def work(context: ToolContext) -> str:
    """Its effect is held by the world for as long as the test wants."""
    await tell("work", attempt=context.attempt, key=context.idempotency_key)
    return f"worked in attempt {context.attempt}"


def sync_work(context: ToolContext) -> str:
    do(world(), "sync_work", pid=os.getpid(), attempt=context.attempt)
    return f"worked in attempt {context.attempt}"


def polls(context: ToolContext) -> str:
    """Waits in a thread until it is told to stop; what it says then is no result of its work."""
    do(world(), "polls", attempt=context.attempt)
    if context.attempt > 1:
        return "finished"
    while not context.cancelled:
        time.sleep(0.01)
    return "gave up"


async def steps(context: ToolContext) -> str:
    """Attempt 1 reports and hangs, attempt 2 only hangs, attempt 3 tells what it was left."""
    await tell("steps", attempt=context.attempt, left=list(context.last_heartbeat))
    if context.attempt == 1:
        context.heartbeat("chunk", 7)
    if context.attempt <= 2:
        await asyncio.sleep(3)  # a few beats
        await tell("beaten", attempt=context.attempt)
        await asyncio.sleep(3600)
    return f"went on from {list(context.last_heartbeat)}"


def poison() -> str:
    do(world(), "poison_tool")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def poison_locally() -> str:
    do(world(), "poison_locally")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def poison_node(state: AgentState) -> None:
    do(world(), "poison_node")
    os.kill(os.getpid(), signal.SIGKILL)


async def node_work(state: AgentState, context: RunContext) -> str:
    await tell("node_work", attempt=context.attempt)
    return f"node worked in attempt {context.attempt}"


def one_node(name: str, function: Any) -> Any:
    builder = StateGraph(name=name)
    builder.add_node(name, function)
    return builder.set_entry_point(name).add_edge(name, END).compile()


working = agent([work], [call("work", "c1")], name="working")
sync_working = agent([sync_work], [call("sync_work", "c1")], name="sync_working")
polling = agent([polls], [call("polls", "c1")], name="polling")
stepping = agent([steps], [call("steps", "c1")], name="stepping")
poisonous = agent([poison], [call("poison", "c1")], name="poisonous")
poisonous_locally = agent([poison_locally], [call("poison_locally", "c1")], name="poisonous_locally", execution="local")
poisonous_node = one_node("poisonous_node", poison_node)
node_working = one_node("node_working", node_work)

HERE = "tenxgraph_temporal.tests.faults.stop_graphs"
