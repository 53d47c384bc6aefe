"""The spans that a workflow makes, while it is replayed from the beginning for each of its tasks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import StatusCode
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client

from tenxgraph_temporal import AgentState, StateGraph, WirePlugin, interrupt
from tenxgraph_temporal.runtime.client import RunFailed, RunStopped
from tenxgraph_temporal.runtime.devstack import dev_stack
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore
from tenxgraph_temporal.runtime.telemetry.metrics import Metrics
from tenxgraph_temporal.runtime.telemetry.store_spans import watch_statements
from tenxgraph_temporal.runtime.telemetry.tracing import Tracing

from ..faults.test_long_runs import SUGGEST_EARLY, counter
from ..support.app import App, eventually
from ..support.graphs import agent, call


class Spans:
    """A tracer provider, and what it was given."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing.of(self.provider)

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def assert_unique(self) -> None:
        ids = Counter(span.context.span_id for span in self.all if span.context)
        assert set(ids.values()) == {1}, ids

    @property
    def traces(self) -> set[int]:
        return {span.context.trace_id for span in self.all if span.context}


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


@pytest.fixture
async def forgetful(store: PostgresStore, tmp_path: Path) -> AsyncIterator[App]:
    """An app on a Temporal that asks for a roll-over after 50 events."""
    async with dev_stack(postgres=False, redis=False, temporal_args=SUGGEST_EARLY) as stack:
        client = await Client.connect(stack.temporal_address, plugins=[WirePlugin()])
        yield App(stack=stack, client=client, store=store, logs=tmp_path)


def add(a: int, b: int) -> int:
    return a + b


async def test_replays_add_no_spans(app: App, spans: Spans) -> None:
    graph = agent([add], [call("add", "1", a=1, b=2)], [call("add", "2", a=1, b=2)])
    async with app.worker(graph, tracing=spans.tracing):
        run = await app.start("agent", app.thread())
        await run.result()
    spans.assert_unique()
    assert len(spans.traces) == 1
    assert len(spans.named("invoke_agent agent")) == 1
    assert len(spans.named("node tools")) == 2
    assert len(spans.named("execute_tool add")) == 2
    before = len(spans.all)
    async with app.worker(graph, tracing=spans.tracing):
        await run.workflow.query("status")  # replays the whole history
    assert len(spans.all) == before


async def test_executions_that_continue_as_new_are_one_trace(forgetful: App, spans: Spans) -> None:
    app = forgetful
    async with app.worker(counter(60), tracing=spans.tracing):
        await (await app.start("counter", app.thread(), config={"recursion_limit": 100})).result()
    spans.assert_unique()
    assert len(spans.traces) == 1
    runs = sorted(spans.named("invoke_agent counter"), key=lambda span: span.start_time or 0)
    assert len(runs) > 2
    first, *others = runs
    assert first.parent is None
    assert {span.parent and span.parent.span_id for span in others} == {first.context and first.context.span_id}
    statuses = [(span.attributes or {})["tenxgraph.run_status"] for span in runs]
    assert statuses == ["continued"] * (len(runs) - 1) + ["completed"]
    assert len(spans.named("node again")) == 61


async def test_a_reset_stays_in_the_trace(app: App, spans: Spans) -> None:
    graph = agent([add], [call("add", "1", a=1, b=2)])
    async with app.worker(graph, tracing=spans.tracing):
        run = await app.start("agent", app.thread())
        await run.result()
        history = await run.workflow.fetch_history()
        started = next(e.event_id for e in history.events if e.HasField("workflow_task_completed_event_attributes"))
        request = ResetWorkflowExecutionRequest(
            namespace=app.client.namespace,
            workflow_execution=WorkflowExecution(
                workflow_id=run.workflow.id, run_id=run.workflow.first_execution_run_id or ""
            ),
            workflow_task_finish_event_id=started,
            request_id="again",
        )
        await app.client.workflow_service.reset_workflow_execution(request)
        await app.client.get_workflow_handle(run.workflow.id).result()
    spans.assert_unique()
    assert len(spans.traces) == 1
    assert len(spans.named("invoke_agent agent")) == 2


async def test_a_failed_run_says_so_without_the_text(app: App, spans: Spans) -> None:
    def broken(state: AgentState) -> str:
        raise ValueError("with a secret")

    graph = StateGraph(name="broken").add_node("broken", broken).set_entry_point("broken").compile()
    async with app.worker(graph, tracing=spans.tracing):
        with pytest.raises(RunFailed):
            await (await app.start("broken", app.thread())).result()
    for name in ("invoke_agent broken", "node broken"):
        (span,) = spans.named(name)
        assert span.status.status_code == StatusCode.ERROR
        assert span.status.description is None
        assert (span.attributes or {})["error.type"] == "NODE_001"
        assert not span.events


async def test_a_stopped_run_is_no_error(app: App, spans: Spans) -> None:
    entered = asyncio.Event()

    async def hang(state: AgentState) -> str:
        entered.set()
        await asyncio.sleep(60)
        return "late"

    graph = StateGraph(name="hanging").add_node("hang", hang).set_entry_point("hang").compile()
    async with app.worker(graph, tracing=spans.tracing):
        run = await app.start("hanging", app.thread())
        await entered.wait()
        await run.stop()
        with pytest.raises(RunStopped):
            await run.result()
    spans.assert_unique()
    (root,), (node,) = spans.named("invoke_agent hanging"), spans.named("node hang")
    assert (root.attributes or {})["tenxgraph.run_status"] == "stopped"
    assert (node.attributes or {})["error.type"] == "cancelled"
    assert StatusCode.ERROR not in {span.status.status_code for span in (root, node)}


async def test_an_answer_is_linked_with_its_senders_trace(app: App, spans: Spans) -> None:
    def ask() -> str:
        return str(interrupt("?"))

    reader = InMemoryMetricReader()
    metrics = Metrics(MeterProvider([reader], shutdown_on_exit=False))
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("caller")
    async with app.worker(agent([ask], [call("ask", "1")]), tracing=spans.tracing, metrics=metrics):
        run = await app.start("agent", app.thread())
        await eventually(run.interrupts)
        await run.workflow.signal("resume", "nonsense")
        with tracer.start_as_current_span("the sender's") as sender:
            await run.answer("yes")
        await run.result()
    (span,) = spans.named("invoke_agent agent")
    assert [link.context.span_id for link in span.links] == [sender.get_span_context().span_id]
    assert [event.name for event in span.events] == ["signal resume", "update resume"]
    assert len(spans.traces) == 1
    spans.assert_unique()
    data = reader.get_metrics_data()
    assert data is not None
    counted = {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    for name in ("ignored", "opened", "answered"):
        points = counted[f"tenxgraph.interrupts.{name}"].data.data_points
        assert sum(getattr(point, "value", 0) for point in points) == 1, name


async def test_a_run_is_sampled_as_a_whole(app: App) -> None:
    """Also one whose trace begins with it: its id decides, on every worker alike."""
    spans = Spans(ratio=0.5)
    async with app.worker(agent([add], [call("add", "1", a=1, b=2)]), tracing=spans.tracing):
        for _ in range(16):
            await (await app.start("agent", app.thread())).result()
    by_trace = Counter(span.context.trace_id for span in spans.all if span.context)
    assert 0 < len(by_trace) < 16, "once in 32768 runs of this test, by chance"
    assert len(spans.named("invoke_agent agent")) == len(by_trace)
    assert len(spans.named("execute_tool add")) == len(by_trace)


async def test_statements_that_serve_several_runs_stay_in_one_of_their_traces(
    app: App, spans: Spans, postgres_dsn: str
) -> None:
    watched = await PostgresStore.open(
        postgres_dsn, schema=app.store.schema, pool_size=2, pool_options={"init": watch_statements}
    )
    graph = agent([add], [call("add", str(n), a=1, b=2) for n in range(5)])
    async with app.worker(graph, tracing=spans.tracing, store=watched, max_cached_workflows=100):
        runs = [await app.start("agent", app.thread()) for _ in range(10)]
        for run in runs:
            await run.result()
    await watched.close()
    spans.assert_unique()
    assert len(spans.traces) == 10
    by_id = {span.context.span_id: span for span in spans.all if span.context}
    inserts = [span for span in spans.named("INSERT") if "tool_executions" in str(span.attributes)]
    assert 10 <= len(inserts) <= 50, "joined or alone, but never across everything"
    for span in inserts:
        assert span.parent is not None
        parent = by_id[span.parent.span_id]
        assert parent.name == "ledger.record"
        # Made while its parent waited for it, and not by a task that some earlier span had left behind.
        assert (parent.start_time or 0) <= (span.start_time or 0) <= (parent.end_time or 0)
