"""The bench runs, and a run costs what it should: counted, never timed."""

from __future__ import annotations

import json
import os
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from typing import Any


async def bench(program: str, *arguments: str) -> Any:
    process = await create_subprocess_exec(
        sys.executable, "-m", f"tenxgraph_temporal.bench.{program}", *arguments, stdout=PIPE, env=dict(os.environ)
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out
    return json.loads(out)


async def test_what_a_run_costs() -> None:
    works = ("5x3", "10x3", "5x3@1000000")
    document = await bench("run", *works, "--runs", "1", "--rounds", "1", "--total", "0", "--json")
    plain, longer, large = document["results"]
    floor, product, batch = plain["floor"], plain["product"], plain["batch"]

    # Events depend a little on which activities are done when the workflow looks; bounds, not equalities.
    assert product["events"] <= 1.25 * floor["events"], "no more than one activity per node and per call"
    assert batch["events"] < 0.85 * floor["events"]
    assert product["history_bytes"] < 2 * floor["history_bytes"]

    # 2 to begin; per turn: a commit of the model's step, a look-up and a record for each call, and for the
    # commit of the tool step a look-up and itself; 1 to end.
    assert product["statements"] <= 2 + 5 * (1 + 3 * 2 + 2) + 1
    assert batch["statements"] < product["statements"]

    # Histories carry no state: a megabyte of it is not seen. Postgres is sent it once.
    assert large["product"]["history_bytes"] < 1.3 * product["history_bytes"]
    assert large["product"]["statement_bytes"] < product["statement_bytes"] + 1_100_000

    # Twice the turns cost twice as much: no step sends the whole conversation again.
    assert longer["product"]["statement_bytes"] < 2.1 * product["statement_bytes"]


async def test_a_small_soak() -> None:
    document = await bench("soak", "--runs", "20", "--paused", "10")
    assert [sample["runs"] for sample in document["short"]["samples"]] == list(range(0, 21, 2))
    assert document["waiting"]["answered"] == 10
    assert document["waiting"]["kb_per_paused_run"]["temporal"] < 10_000
