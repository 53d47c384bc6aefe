"""Graphs for worker processes that run out of memory."""

from __future__ import annotations

import asyncio
import resource

from tenxgraph_temporal import ToolContext

from ..support.graphs import agent, call, world
from ..support.world import do
from .stop_graphs import tell

MIB = 1024 * 1024


def limit_memory(more: int) -> None:
    """Let this process have ``more`` bytes than now; what it asks for beyond them is refused."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, resource.RLIM_INFINITY))


def hoard(context: ToolContext) -> str:
    """Takes whatever it can get, until it is refused."""
    limit_memory(512 * MIB)
    do(world(), "hoard", attempt=context.attempt)
    kept = []
    while True:
        kept.append(bytearray(16 * MIB))


async def async_hoard(context: ToolContext) -> str:
    await tell("async_hoard", attempt=context.attempt)
    limit_memory(512 * MIB)
    kept = []
    while True:
        kept.append(bytearray(16 * MIB))


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


hoarding = agent(
    [hoard, async_hoard, beside], [call("hoard", "1"), call("async_hoard", "2"), call("beside", "3")], name="hoarding"
)
gulping = agent([gulp], [call("gulp", "1")], name="gulping")

HERE = "tenxgraph_temporal.tests.faults.memory_graphs"
