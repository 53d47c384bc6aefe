"""``make bench``: floor and product in rotation on servers that it starts; medians and ratios.

Times are compared only within one run of this program: everything shares one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from tenxgraph_temporal import GraphClient, Settings, TenxGraphPlugin, WirePlugin, open_store
from tenxgraph_temporal.runtime.devstack import dev_stack

from .floor import Floor, Shape, node, tool
from .product import work

SHAPES = ((1, 1), (5, 3), (20, 3), (5, 20))
Run = Callable[[], Awaitable[Any]]


async def one_by_one(run: Run, count: int) -> list[float]:
    """Seconds of each of ``count`` runs, one after the other."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await run()
        times.append(time.perf_counter() - started)
    return times


async def throughput(run: Run, *, total: int, concurrent: int) -> float:
    """Runs per second, ``concurrent`` at a time."""
    gate = asyncio.Semaphore(concurrent)

    async def one() -> None:
        async with gate:
            await run()

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(total)))
    return total / (time.perf_counter() - started)


async def measure(shapes: list[tuple[int, int]], *, runs: int, total: int, rounds: int) -> list[dict[str, Any]]:
    """Measure each shape; floor and product take turns within it."""
    results = []
    graphs = [(work(turns, calls), work(turns, calls, "batch")) for turns, calls in shapes]
    async with dev_stack() as stack:
        settings = {"database_url": stack.postgres_dsn, "redis_url": stack.redis_url}
        store = await open_store(Settings.model_validate(settings))
        await store.setup()
        client = await Client.connect(stack.temporal_address, plugins=[WirePlugin()])
        plugin = TenxGraphPlugin([graph for pair in graphs for graph in pair], store)
        shared: dict[str, Any] = {
            "max_concurrent_activities": 200,
            "max_eager_activity_reservations_per_workflow_task": 100,
        }
        floor_worker = Worker(client, task_queue="floor", workflows=[Floor], activities=[node, tool], **shared)
        product_worker = Worker(client, task_queue="tenxgraph", plugins=[plugin], **shared)
        async with floor_worker, product_worker:
            product = GraphClient(client)
            for (turns, calls), (graph, batched) in zip(shapes, graphs, strict=True):
                config = {"recursion_limit": 1000}

                async def floor_run(turns: int = turns, calls: int = calls) -> Any:
                    handle = await client.start_workflow(
                        "Floor", Shape(turns, calls), id=f"floor-{uuid.uuid4()}", task_queue="floor"
                    )
                    await handle.result()
                    return handle

                async def product_run(name: str = graph.name, config: Any = config) -> Any:
                    run = await product.start(name, str(uuid.uuid4()), "go", config=config)
                    await run.result()
                    return run.workflow

                async def batch_run(name: str = batched.name) -> Any:
                    return await product_run(name)

                sides: dict[str, Run] = {"floor": floor_run, "product": product_run, "batch": batch_run}
                row: dict[str, Any] = {"turns": turns, "calls": calls}
                for name, run in sides.items():
                    history = await (await run()).fetch_history()
                    row[f"{name}_events"] = len(history.events)
                    row[f"{name}_bytes"] = sum(event.ByteSize() for event in history.events)
                times: dict[str, list[float]] = {name: [] for name in sides}
                rates: dict[str, list[float]] = {name: [] for name in sides}
                for _ in range(rounds):
                    for name, run in sides.items():
                        times[name] += await one_by_one(run, runs)
                for _ in range(rounds):
                    for name, run in sides.items():
                        rates[name].append(await throughput(run, total=total, concurrent=50))
                for name in sides:
                    row[f"{name}_ms"] = round(statistics.median(times[name]) * 1000, 1)
                    row[f"{name}_per_s"] = round(statistics.median(rates[name]), 1)
                for name in ("product", "batch"):
                    row[f"{name}_time_ratio"] = round(row[f"{name}_ms"] / row["floor_ms"], 2)
                    row[f"{name}_rate_ratio"] = round(row[f"{name}_per_s"] / row["floor_per_s"], 2)
                    row[f"{name}_bytes_ratio"] = round(row[f"{name}_bytes"] / row["floor_bytes"], 2)
                results.append(row)
                print(json.dumps(row), flush=True)
        await store.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="runs per round, one after the other")
    parser.add_argument("--total", type=int, default=100, help="runs per round at 50 concurrent")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", action="append", default=[], help="TURNSxCALLS; all by default")
    options = parser.parse_args()
    shapes = [(int(a), int(b)) for a, b in (s.split("x") for s in options.shape)] or list(SHAPES)
    asyncio.run(measure(shapes, runs=options.runs, total=options.total, rounds=options.rounds))


if __name__ == "__main__":
    main()
