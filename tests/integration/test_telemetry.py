"""What collectors get from worker processes: one trace per run, the counters, and nothing that is confidential."""

from __future__ import annotations

import asyncio
import re
import socket
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from ..support.app import App
from ..support.collector import Collector, SeenSpan, grpc_collector, otlp_collector
from ..support.telemetry_graphs import SECRET
from ..support.world import World

STORY = "tenxgraph_temporal.tests.support.graphs:story"
GRAPHS = "tenxgraph_temporal.tests.support.telemetry_graphs"
DOCS = Path(__file__).parents[2] / "docs"
TOOLS = ("lookup", "charge", "receipt")
STATEMENTS = {"SELECT", "INSERT", "UPDATE", "WITH", "BEGIN;", "COMMIT;"}


def to(collector: Collector, **more: str) -> dict[str, str]:
    """The environment of a worker that exports everything to ``collector``."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, **more}


def below(collector: Collector, span: SeenSpan) -> list[str]:
    return [child.name for child in collector.children(span)]


def assert_one_tree(collector: Collector, root: SeenSpan) -> None:
    """Every span is in the trace of ``root`` and hangs below it, under an id of its own."""
    ids = Counter(span.span_id for span in collector.spans)
    assert set(ids.values()) == {1}, ids
    known = {*ids, root.parent_id}
    lost = [span for span in collector.spans if span.trace_id != root.trace_id or span.parent_id not in known]
    assert not lost, lost


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
async def test_a_run_is_one_trace_with_its_counters(app: App, world: World, protocol: str) -> None:
    thread_id = app.thread()
    serve = grpc_collector if protocol == "grpc" else otlp_collector
    async with serve() as collector:
        env = to(collector, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OUTSIDE_WORLD=world.address)
        async with app.process(STORY, **env) as worker:
            run_id = (await app.start("story", thread_id)).workflow.first_execution_run_id
            await app.graphs.handle(thread_id).result()
            assert await worker.terminate() == 0, worker.output
    run = collector.one("invoke_agent story")
    print(collector.tree(run))
    assert_one_tree(collector, run)
    assert run.parent_id == ""
    assert below(collector, run) == ["run.begin", "node model", "node tools", "node model"]
    assert run.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert run.attributes["gen_ai.agent.name"] == "story"
    assert run.attributes["tenxgraph.run_status"] == "completed"
    assert run.resource["service.name"] == "tenxgraph-temporal"
    step = collector.one("node tools")
    assert sorted(below(collector, step)) == sorted(f"execute_tool {tool}" for tool in TOOLS)
    for tool in TOOLS:
        span = collector.one(f"execute_tool {tool}")
        assert {"ledger.load_call", "ledger.record"} <= set(below(collector, span))
        assert span.attributes["gen_ai.operation.name"] == "execute_tool"
        assert span.attributes["gen_ai.tool.name"] == tool
        assert span.attributes["gen_ai.tool.call.id"] == f"call_{TOOLS.index(tool) + 1}"
        assert span.attributes["gen_ai.conversation.id"] == thread_id
        assert span.attributes["tenxgraph.run_id"] == run_id
        assert span.attributes["tenxgraph.node"] == "tools"
        assert span.attributes["tenxgraph.outcome"] == "ran"
        assert span.attributes["tenxgraph.attempt"] == 1
        assert run.start <= step.start <= span.start <= span.end <= run.end
    records = [span for name in ("ledger.record", "state.commit") for span in collector.named(name)]
    statements = [child for span in records for child in collector.children(span)]
    assert statements
    assert {span.name for span in statements} <= STATEMENTS, collector.tree(run)
    assert all(span.attributes["db.system.name"] == "postgresql" for span in statements)
    assert any("tool_executions" in span.attributes["db.query.text"] for span in statements)
    assert not [span for span in collector.spans if span.failed]

    assert collector.total("tenxgraph.node.executions", node="model") == 2
    assert collector.total("tenxgraph.node.duration", node="model") == 2
    assert collector.total("tenxgraph.node.errors") == 0
    for tool in TOOLS:
        own = {"node": "tools", "tool": tool}
        assert collector.total("tenxgraph.tool.calls", **own) == 1
        assert collector.total("tenxgraph.tool.duration", **own) == 1
        assert collector.total("tenxgraph.ledger.misses", **own) == 1
        assert len(collector.metrics["tenxgraph.ledger.unrecorded"]) == len(TOOLS)
        assert collector.total("tenxgraph.ledger.unrecorded", **own) == 0
    assert collector.total("tenxgraph.state.commits") == 4
    assert collector.total("tenxgraph.state.bytes") == 4
    assert collector.total("temporal_workflow_completed") == 1
    assert collector.total("temporal_activity_execution_latency") == 5
    durations = next(iter(collector.metrics["tenxgraph.node.duration"].values())).explicit_bounds
    assert (durations[0], durations[-1]) == (0.001, 900.0)


async def test_a_run_continues_the_callers_trace(app: App, world: World) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("caller")
    async with (
        otlp_collector() as collector,
        app.process(STORY, **to(collector, OUTSIDE_WORLD=world.address)) as worker,
    ):
        with tracer.start_as_current_span("the caller's") as span:
            run = await app.start("story", app.thread())
        await run.result()
        assert await worker.terminate() == 0
    context = span.get_span_context()
    root = collector.one("invoke_agent story")
    assert (root.trace_id, root.parent_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert_one_tree(collector, root)


async def test_a_killed_worker_leaves_one_trace(app: App, world: World) -> None:
    """A second worker goes on with the trace, and shows as replayed what the first one had recorded."""
    kill = {"TENXGRAPH_FAULTS": "tool.recorded/charge=kill", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    async with otlp_collector() as collector:
        env = to(collector, OUTSIDE_WORLD=world.address)
        async with app.process(STORY, **env, **kill) as first:
            run = await app.start("story", app.thread())
            assert await first.wait() == -9
        async with app.process(STORY, **env) as second:
            await run.result()
            assert await second.terminate() == 0
    root = collector.one("invoke_agent story")
    print(collector.tree(root))
    ids = Counter(span.span_id for span in collector.spans)
    assert set(ids.values()) == {1}, ids
    assert {span.trace_id for span in collector.spans} == {root.trace_id}
    assert len(collector.named("node tools")) == 1
    charged = collector.named("execute_tool charge")
    assert [(span.attributes["tenxgraph.attempt"], span.attributes["tenxgraph.outcome"]) for span in charged] == [
        (2, "replayed")
    ]
    assert charged[0].parent_id == collector.one("node tools").span_id
    assert collector.total("tenxgraph.ledger.hits", tool="charge") == 1
    assert len({span.resource["service.instance.id"] for span in collector.spans}) >= 1


@pytest.mark.parametrize("switched_on", [False, True])
async def test_content_is_exported_only_if_switched_on(app: App, switched_on: bool) -> None:
    async with otlp_collector() as collector:
        env = to(collector, TENXGRAPH_TRACE_CONTENT=str(switched_on).lower())
        async with app.process(f"{GRAPHS}:talkative", f"{GRAPHS}:chatty", **env) as worker:
            for graph in ("talkative", "chatty"):
                run = await app.start(graph, app.thread(), f"tell me {SECRET}")
                await run.result()
            assert await worker.terminate() == 0
    failed = collector.one("execute_tool fail")
    assert failed.failed
    assert failed.attributes["error.type"] == "TOOL_ERROR"
    assert len(collector.named("execute_tool talk")) == 2
    assert collector.says(SECRET) is switched_on
    if switched_on:
        for span in collector.named("execute_tool talk"):
            assert span.attributes["gen_ai.tool.call.arguments"] == f'{{"word": "{SECRET}"}}'
            assert span.attributes["gen_ai.tool.call.result"] == f"{SECRET} was said"
        asked, answered = collector.named("chat")
        assert f"tell me {SECRET}" in asked.attributes["gen_ai.input.messages"]
        assert f"bye {SECRET}" in answered.attributes["gen_ai.output.messages"]


async def test_a_batch_has_a_span_for_each_call(app: App) -> None:
    async with otlp_collector() as collector, app.process(f"{GRAPHS}:chatty", **to(collector)) as worker:
        await (await app.start("chatty", app.thread())).result()
        assert await worker.terminate() == 0
    assert_one_tree(collector, collector.one("invoke_agent chatty"))
    assert below(collector, collector.one("node tools")) == ["batch tools"]
    assert sorted(below(collector, collector.one("batch tools"))) == ["execute_tool shout", "execute_tool talk"]
    for tool in ("talk", "shout"):  # spans of user code join in
        assert collector.one(f"inside {tool}").parent_id == collector.one(f"execute_tool {tool}").span_id
    assert [below(collector, span).count("chat") for span in collector.named("node model")] == [1, 1]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.parametrize("by", ["our setting", "the standard variables"])
async def test_an_endpoint_for_prometheus(app: App, world: World, by: str) -> None:
    port = free_port()
    standard = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(port)}
    env = {"TENXGRAPH_METRICS_PORT": str(port)} if by == "our setting" else standard
    async with app.process(STORY, OUTSIDE_WORLD=world.address, **env) as worker:
        first = await asyncio.to_thread(scrape, port)
        assert 'tenxgraph_ledger_unrecorded_total{node="tools",tool="charge"} 0.0' in first
        await (await app.start("story", app.thread())).result()
        await asyncio.sleep(1.2)  # Temporal's metrics come once a second
        text = await asyncio.to_thread(scrape, port)
        assert await worker.terminate() == 0
    for file in ("alerts.yml", "grafana.json"):  # what they ask about Temporal's SDK is there
        asked = set(re.findall(r"\btemporal_\w+\b", (DOCS / file).read_text()))
        assert asked
        assert not [name for name in asked if not re.search(rf"^{name}\{{", text, re.MULTILINE)], text
    for label in ('poller_type="workflow_task"', 'worker_type="ActivityWorker"'):
        assert label in text
    assert 'tenxgraph_node_executions_total{node="model"} 2.0' in text
    assert 'tenxgraph_tool_duration_seconds_bucket{le="900.0",node="tools",tool="charge"} 1.0' in text
    assert re.search(r'^temporal_workflow_completed_total\{.*workflow_type="GraphRun"\} 1.0$', text, re.MULTILINE)
    assert "target_info{" in text


async def test_a_worker_drains_without_its_collector(app: App, world: World) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OUTSIDE_WORLD": world.address}
    async with app.process(STORY, **env) as worker:
        await (await app.start("story", app.thread())).result()
        async with asyncio.timeout(30):
            assert await worker.terminate() == 0


async def test_nothing_is_exported_where_the_sdk_is_disabled(app: App, world: World) -> None:
    async with otlp_collector() as collector:
        env = to(collector, OTEL_SDK_DISABLED="true", OUTSIDE_WORLD=world.address)
        async with app.process(STORY, **env) as worker:
            run = await app.start("story", app.thread())
            await run.result()
            assert await worker.terminate() == 0
    assert not collector.bodies
    history: Any = await run.workflow.fetch_history()
    scheduled = [e.activity_task_scheduled_event_attributes for e in history.events]
    assert not [attributes for attributes in scheduled if attributes.header.fields]
