"""What a collector gets from worker processes: one trace per run, the counters, and nothing said in confidence."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from ..support.app import App
from ..support.collector import Collector, otlp_collector
from ..support.world import World

STORY = "tenxgraph_temporal.tests.support.graphs:story"
TOOLS = ("lookup", "charge", "receipt")


def exporting(collector: Collector, world: World, **more: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "OUTSIDE_WORLD": world.address, **more}


def shape(collector: Collector, name: str) -> list[str]:
    """The names of the spans below the only one of that name."""
    return [span.name for span in collector.children(collector.one(name))]


async def test_a_run_is_one_trace_with_its_counters(app: App, world: World) -> None:
    thread_id = app.thread()
    async with otlp_collector() as collector:
        async with app.process(STORY, **exporting(collector, world)) as worker:
            await (await app.start("story", thread_id)).result()
            assert await worker.terminate() == 0, worker.output
    run = collector.one("invoke_agent story")
    print(collector.tree(run))
    assert 0
