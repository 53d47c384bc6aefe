"""The commands that serve: ``dev`` and ``worker``. They end with everything that they started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tenxgraph_temporal.examples.process import python_process

from ..support.app import App
from ..support.cli import STORY, cli, environment, one_line
from ..support.world import World


def processes_of(marker: str) -> list[str]:
    """Command lines and working directories that name ``marker``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if marker in line or marker in str((entry / "cwd").readlink()):
                    found.append(f"{entry.name} {line}")
            except OSError:
                continue
    return found


@asynccontextmanager
async def dev(app: App, directory: Path, *arguments: str) -> AsyncIterator[Any]:
    # It must not need, or be misled by, an environment that points elsewhere.
    env = {**environment(app), "TEMPORAL_ADDRESS": "127.0.0.1:1", "TEMPORAL_NAMESPACE": "nowhere"}
    command = ("tenxgraph_temporal.cli", "dev", *arguments, "--dir", str(directory))
    async with python_process(*command, env=env) as process:
        yield process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_dev_ends_with_everything_it_started(app: App, tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "stack"
    async with dev(app, directory) as process:
        line = await process.until("export ")
        await process.until("ready")
        env = dict(pair.split("=", 1) for pair in line.removeprefix("export ").split())
        assert set(env) == {"TEMPORAL_ADDRESS", "TENXGRAPH_DATABASE_URL", "TENXGRAPH_REDIS_URL"}
        assert processes_of(str(directory)) != []
        well = await cli(app, "doctor", "--json", **env)
        assert well.code == 0, well
        process.signal(number)
        assert await process.wait() == 0, process.output
    assert processes_of(str(directory)) == []


async def test_dev_serves_graphs(app: App, tmp_path: Path, world: World) -> None:
    directory = tmp_path / "stack"
    os.environ["OUTSIDE_WORLD"] = world.address
    try:
        async with dev(app, directory, STORY) as process:
            line = await process.until("export ")
            await process.until("worker ready")
            env = dict(pair.split("=", 1) for pair in line.removeprefix("export ").split())
            ended = await cli(app, "run", "story", "charge me", **env)
            assert (ended.code, ended.out) == (0, "Your card was charged.\n"), ended
            assert await process.terminate() == 0, process.output
    finally:
        del os.environ["OUTSIDE_WORLD"]
    assert processes_of(str(directory)) == []


async def test_dev_that_is_ended_while_it_starts_leaves_nothing(app: App, tmp_path: Path) -> None:
    directory = tmp_path / "stack"
    async with dev(app, directory) as process:
        await process.until("starting")
        await asyncio.sleep(0.2)
        assert await process.terminate() == 0, process.output
    assert processes_of(str(directory)) == []


async def test_dev_says_when_its_port_is_taken(app: App) -> None:
    port = app.stack.temporal.port
    ended = await cli(app, "dev", "--temporary", "--temporal-port", str(port))
    assert ended.code == 1, ended
    assert f"port {port} of 127.0.0.1 is in use" in ended.err, ended


async def test_worker_and_dev_refuse_what_is_no_graph(app: App) -> None:
    for command in ("worker", "dev"):
        ended = await cli(app, command, "tenxgraph_temporal.tests.support.graphs:nothing")
        assert ended.code == 1, ended
        assert "'nothing' does not exist" in one_line(ended)
