"""``make soak``: many short runs, or many paused ones, and what memory they take.

``--runs 10000`` makes short runs and prints how the processes grow; ``--paused 1000`` leaves runs waiting for a person.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import uuid
from itertools import pairwise
from typing import Any

import psutil

from tenxgraph_temporal import END, AgentState, CompiledGraph, GraphClient, RunHandle, StateGraph, interrupt
from tenxgraph_temporal.runtime import event_loop
from tenxgraph_temporal.worker import leave

from .run import machine
from .stage import Stage, Work, stage

_AT_ONCE = 50
_WORK = Work(1, 1)
_STATE_CACHE = 2_000_000
"""Bytes; full after some hundred runs, so that what grows behind that is a leak."""


def asks() -> CompiledGraph:
    """A graph that waits for a person."""

    def ask(state: AgentState) -> str:
        return str(interrupt("?"))

    builder = StateGraph(AgentState, name="asks").add_node("ask", ask)
    return builder.set_entry_point("ask").add_edge("ask", END).compile()


def megabytes(on: Stage) -> dict[str, float]:
    """Resident memory of this process (worker and client) and of Temporal, which here keeps all runs in memory."""
    gc.collect()
    used = {"worker": psutil.Process(), "temporal": psutil.Process(on.stack.temporal.pid)}
    return {name: round(process.memory_info().rss / 1e6, 1) for name, process in used.items()}


async def at_once(count: int, one: Any) -> list[Any]:
    """``count`` results of ``one``, so many at a time."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def gated() -> Any:
        async with gate:
            return await one()

    return await asyncio.gather(*(gated() for _ in range(count)))


async def short_runs(on: Stage, total: int, parts: int = 10) -> dict[str, Any]:
    """Memory after each tenth of ``total`` runs, and how much more the last five of them took, at the median."""
    run = on.sides(_WORK)["product"]
    samples = [{"runs": 0, **megabytes(on)}]
    for part in range(1, parts + 1):
        await at_once(total // parts, run)
        samples.append({"runs": part * (total // parts), **megabytes(on)})
        print(json.dumps(samples[-1]), file=sys.stderr, flush=True)
    late = samples[parts // 2 :]
    growth = {
        name: round(statistics.median(after[name] - before[name] for before, after in pairwise(late)), 2)
        for name in ("worker", "temporal")
    }
    return {"samples": samples, "mb_per_tenth": growth}


async def paused_runs(on: Stage, total: int) -> dict[str, Any]:
    """Memory that each of ``total`` runs takes while it waits, and that an answer still finds every one of them."""
    graphs = GraphClient(on.client)

    async def pause() -> RunHandle:
        run = await graphs.start("asks", str(uuid.uuid4()), "go")
        while not await run.interrupts():  # noqa: ASYNC110  # a query: nobody tells us
            await asyncio.sleep(0.05)
        return run

    await at_once(_AT_ONCE, pause)
    before = megabytes(on)
    runs = await at_once(total, pause)
    after = megabytes(on)
    await asyncio.gather(*(run.answer("yes") for run in runs[:10]))
    results = await asyncio.gather(*(run.result() for run in runs[:10]))
    return {
        "paused": total,
        "kb_per_paused_run": {name: round((after[name] - before[name]) * 1000 / total, 1) for name in after},
        "answered": len(results),
    }


async def soak(runs: int, paused: int, cached: int) -> dict[str, Any]:
    """Both, on servers of their own."""
    found: dict[str, Any] = {"machine": machine()}
    async with stage([_WORK], more=[asks()], cache_bytes=_STATE_CACHE, max_cached_workflows=cached) as on:
        if runs:
            found["short"] = await short_runs(on, runs)
        if paused:
            found["waiting"] = {"max_cached_workflows": cached, **await paused_runs(on, paused)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="short runs; 0 for none")
    parser.add_argument("--paused", type=int, default=0, help="runs that wait for a person")
    parser.add_argument("--cached", type=int, default=500, help="workflows that the worker keeps")
    options = parser.parse_args()
    print(json.dumps(event_loop.run(soak(options.runs, options.paused, options.cached)), indent=2))


if __name__ == "__main__":
    main()
    leave(0)
