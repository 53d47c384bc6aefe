"""``make bench``: floor and product in rotation on servers that it starts; medians, ratios and counts.

Times are compared only within one run of this program: everything shares one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import time
from typing import Any

import psutil

from tenxgraph_temporal.runtime import event_loop
from tenxgraph_temporal.worker import leave

from .stage import Run, Stage, Work, stage

WORKS = ("1x1", "5x3", "20x3", "5x20")
_CONCURRENT = 50


async def one_by_one(run: Run, count: int) -> list[float]:
    """Seconds of each of ``count`` runs, one after the other."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await run()
        times.append(time.perf_counter() - started)
    return times


async def throughput(run: Run, *, total: int) -> float:
    """Runs per second, so many at a time."""
    gate = asyncio.Semaphore(_CONCURRENT)

    async def one() -> None:
        async with gate:
            await run()

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(total)))
    return total / (time.perf_counter() - started)


async def measure(on: Stage, work: Work, *, runs: int, total: int, rounds: int) -> dict[str, Any]:
    """Each contestant on ``work``, taking turns, as ratios to the floor where there is one."""
    sides = on.sides(work)
    result = {name: dict[str, Any](await on.counts(run)) for name, run in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, dict[str, float]] = {name: dict.fromkeys(on.cpu(), 0.0) for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            before = on.cpu()
            times[name] += await one_by_one(run, runs)
            for who, used in on.cpu().items():
                cpu[name][who] += (used - before[who]) / (runs * rounds)
    for _ in range(rounds if total else 0):
        for name, run in sides.items():
            rates[name].append(await throughput(run, total=total))
    for name, found in result.items():
        found["ms"] = round(statistics.median(times[name]) * 1000, 1)
        found["cpu_ms"] = {who: round(used * 1000, 1) for who, used in cpu[name].items()}
        if total:
            found["runs_per_s"] = round(statistics.median(rates[name]), 1)
    floor = result["floor"]
    for name in sides.keys() - {"floor"}:
        keys = [key for key in ("ms", "runs_per_s", "history_bytes") if key in floor]
        result[name]["ratios"] = {key: round(result[name][key] / floor[key], 2) for key in keys}
    return {"work": str(work), **result}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    gigabytes = psutil.virtual_memory().total / 1e9
    loop = "asyncio" if event_loop.loop_factory() is None else "uvloop"
    python = platform.python_version()
    return {"cpus": psutil.cpu_count(), "memory_gb": round(gigabytes), "python": python, "event_loop": loop}


def show(result: dict[str, Any]) -> None:
    """A few lines for people."""
    print(f"W({result['work']})")
    for name, found in result.items():
        if name == "work":
            continue
        cpu = ", ".join(f"{who} {used:g}" for who, used in found["cpu_ms"].items())
        rate = f"  {found['runs_per_s']:7.1f} runs/s" if "runs_per_s" in found else ""
        history = f"  {found['events']:4} events  {found['history_bytes']:6} B of history"
        database = f"  {found['statements']:4} statements  {found['statement_bytes']:9} B to Postgres"
        print(f"  {name:10}{found['ms']:8.1f} ms{rate}{history}{database}  CPU ms: {cpu}")
        if "ratios" in found:
            print("          to the floor: " + ", ".join(f"{key} {ratio:g}" for key, ratio in found["ratios"].items()))
    sys.stdout.flush()


async def bench(works: list[Work], *, as_json: bool, **sizes: int) -> None:
    """Measure ``works`` one after the other, and print each as it is done."""
    results = []
    async with stage(works) as on:
        if not (on.peers or as_json):
            print("LangGraph is not measured: pip install temporalio-langgraph")
        for work in works:
            results.append(await measure(on, work, **sizes))
            if not as_json:
                show(results[-1])
    if as_json:
        print(json.dumps({"machine": machine(), "results": results}, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", nargs="*", help="TURNSxCALLS or TURNSxCALLS@BYTES_OF_STATE; the usual ones by default")
    parser.add_argument("--runs", type=int, default=10, help="runs per round, one after the other")
    parser.add_argument("--total", type=int, default=100, help=f"runs per round, {_CONCURRENT} at a time; 0 for none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    options = parser.parse_args()
    works = [Work.parse(text) for text in options.work or WORKS]
    sizes = {"runs": options.runs, "total": options.total, "rounds": options.rounds}
    event_loop.run(bench(works, as_json=options.json, **sizes))


if __name__ == "__main__":
    main()
    leave(0)
