"""The worker process and the plugin: what goes wrong is one clear line, and a worker of one's own takes one line."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from tenxgraph_temporal import GraphClient, TenxGraphPlugin, WirePlugin
from tenxgraph_temporal.runtime.errors import GraphDefinitionError

from ..support.app import App
from ..support.graphs import agent, call

STORY = "tenxgraph_temporal.tests.support.graphs:story"


@pytest.mark.parametrize(
    ("graphs", "environment", "message"),
    [
        (["nope:graph"], {}, "nope:graph cannot be imported: ModuleNotFoundError: No module named 'nope'"),
        (["agent"], {}, "'agent' is not of the form module:attribute"),
        (["json:nope"], {}, "json:nope: 'nope' does not exist"),
        (["json:dumps"], {}, "json:dumps: 'dumps' is a function; a compiled StateGraph is expected"),
        ([STORY, STORY], {}, "two graphs are named 'story'"),
        ([STORY], {"TENXGRAPH_DATABASE_URL": "postgresql://x@127.0.0.1:1/x"}, "Postgres cannot be reached"),
        ([STORY], {"TEMPORAL_ADDRESS": "127.0.0.1:1"}, "no Temporal server at 127.0.0.1:1"),
        ([STORY], {"TENXGRAPH_TYPO": "1"}, "TENXGRAPH_TYPO"),
        ([STORY], {"TENXGRAPH_STATE_HISTORY_LIMIT": "many"}, "TENXGRAPH_STATE_HISTORY_LIMIT: Input should be a valid"),
        ([STORY], {"TENXGRAPH_DATABASE_SCHEMA": "a;b"}, "schema name 'a;b' is not a plain identifier"),
        ([STORY], {"TENXGRAPH_DATABASE_URL": ""}, "TENXGRAPH_DATABASE_URL names no database"),
        ([STORY], {"TENXGRAPH_FAULTS": "now"}, "TENXGRAPH_FAULTS: "),
        ([STORY], {"TENXGRAPH_LOG_LEVEL": "loud"}, "TENXGRAPH_LOG_LEVEL: Input should be 'DEBUG', 'INFO'"),
        ([STORY], {"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER: no exporter 'zipkin' is installed"),
        (
            [STORY],
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL='http/json' is not supported; set grpc or http/protobuf",
        ),
        (
            [STORY],
            {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "http"},
            "OTEL_EXPORTER_PROMETHEUS_PORT='http' is not a port",
        ),
    ],
)
async def test_a_worker_that_cannot_start(
    app: App, graphs: list[str], environment: dict[str, str], message: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tenxgraph_temporal.worker",
        *graphs,
        env={
            **os.environ,
            "TEMPORAL_ADDRESS": app.stack.temporal_address,
            "TENXGRAPH_DATABASE_URL": app.stack.postgres_dsn,
            **environment,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    lines = [line for line in errors.decode().splitlines() if line.startswith("worker: ")]
    assert process.returncode == 1
    assert len(lines) == 1, errors.decode()
    assert message in lines[0]
    assert "Traceback" not in errors.decode()


async def test_the_worker_runs_as_a_file(app: App) -> None:
    """``python worker.py`` from the root of the repository."""
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "worker.py",
        STORY,
        cwd=root,
        env={
            **os.environ,
            "TEMPORAL_ADDRESS": app.stack.temporal_address,
            "TENXGRAPH_DATABASE_URL": app.stack.postgres_dsn,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        async for line in process.stdout:
            if b"worker ready: story" in line:
                break
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 30) == 0


@pytest.mark.parametrize("plain", [False, True], ids=["wire client", "plain client"])
async def test_a_worker_of_ones_own(app: App, plain: bool) -> None:
    """The plugin brings the graphs, and a data converter where the client has the default one."""

    def add(a: int, b: int) -> int:
        return a + b

    client = await Client.connect(app.stack.temporal_address, plugins=[] if plain else [WirePlugin()])
    plugin = TenxGraphPlugin([agent([add], [call("add", "1", a=1, b=2)])], app.store)
    async with Worker(client, task_queue=app.queue, plugins=[plugin]):
        thread_id = app.thread()
        await GraphClient(app.client, task_queue=app.queue).run("agent", thread_id, "hi")
    assert [m.text() for m in (await app.state(thread_id)).context if m.role == "tool"] == ["3"]


async def test_two_graphs_of_one_name(app: App) -> None:
    with pytest.raises(GraphDefinitionError, match="two graphs are named 'agent'"):
        TenxGraphPlugin([agent([]), agent([])], app.store)
