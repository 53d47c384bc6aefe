"""The floor: a bare Temporal workflow in the shape of the work, one no-op activity per node and per tool call."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow


@dataclass
class Shape:
    """``turns`` messages with ``calls`` parallel tool calls each, then an answer."""

    turns: int
    calls: int


@dataclass
class Step:
    name: str
    number: int


@activity.defn(name="floor.node")
async def node(step: Step) -> Step:
    return step


@activity.defn(name="floor.tool")
async def tool(step: Step) -> Step:
    return step


@workflow.defn(name="Floor", sandboxed=False)
class Floor:
    @workflow.run
    async def run(self, shape: Shape) -> int:
        for turn in range(shape.turns):
            await _step("floor.node", Step("model", turn))
            await asyncio.gather(*(_step("floor.tool", Step("tool", call)) for call in range(shape.calls)))
        await _step("floor.node", Step("model", shape.turns))
        return shape.turns


async def _step(name: str, step: Step) -> Step:
    result: Step = await workflow.execute_activity(
        name,
        step,
        result_type=Step,
        start_to_close_timeout=timedelta(seconds=60),
        heartbeat_timeout=timedelta(seconds=10),
    )
    return result
