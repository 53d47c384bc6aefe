"""Graphs for worker processes that run out of memory."""

from __future__ import annotations

import asyncio
import resource
import threading

from tenxgraph_temporal import AgentState, Message, ToolContext, tool

from ..support.graphs import agent, asks, call, loop, world
from ..support.world import do
from .stop_graphs import tell

MIB = 1024 * 1024
_MORE = 768 * MIB
"""What a tool may have before it is refused."""
_PIECE = 512 * MIB
"""Taken at a time, so that enough is left, when one is refused, for the other threads and the stacks of new ones. What
was so large goes back to the system when it is freed, too; pieces of some MiB may stay with the allocator.
"""


def limit_memory(more: int) -> None:
    """Let this process have ``more`` bytes than now; what it asks for beyond them is refused."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, resource.RLIM_INFINITY))


def hoard(context: ToolContext) -> str:
    """Takes whatever it can get, until it is refused."""
    limit_memory(_MORE)
    do(world(), "hoard", attempt=context.attempt)
    kept = []
    while True:
        kept.append(bytearray(_PIECE))


async def async_hoard(context: ToolContext) -> str:
    await tell("async_hoard", attempt=context.attempt)
    limit_memory(_MORE)
    kept = []
    while True:
        kept.append(bytearray(_PIECE))


async def beside(context: ToolContext) -> str:
    """Works while the others run out of memory."""
    await tell("beside", attempt=context.attempt)
    await asyncio.sleep(2)
    return "went on"


def gulp(context: ToolContext) -> str:
    """Needs 600 MiB, really."""
    do(world(), "gulp", attempt=context.attempt, key=context.idempotency_key)
    kept = []
    for _ in range(600 // 4):
        kept.append(b"\x01" * (4 * MIB))
    return f"took {len(kept) * 4} MiB in attempt {context.attempt}"


async def crowd() -> str:
    """From now on the system refuses this process a thread, for want of room for its stack."""
    await tell("crowd")
    threading.stack_size(1 << 46)
    return "crowded"


@tool(in_doubt="fail")
def pay(context: ToolContext) -> str:
    do(world(), "pay", attempt=context.attempt)
    return "paid"


async def crowded_model(state: AgentState) -> Message:
    if state.context[-1].role == "tool":
        return Message.text_message("done", role="assistant")
    await crowd()
    return asks(call("pay", "1"))


crowded_tool = loop(crowded_model, [pay], name="crowded_tool")
crowded_node = agent([crowd, pay], [call("crowd", "1")], [call("pay", "2")], name="crowded_node")

hoarding = agent(
    [hoard, async_hoard, beside], [call("hoard", "1"), call("async_hoard", "2"), call("beside", "3")], name="hoarding"
)
gulping = agent([gulp], [call("gulp", "1")], name="gulping")

HERE = "tenxgraph_temporal.tests.faults.memory_graphs"
