"""Histories replay in any process, under any graph; a reset passes over what is done."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from tenxgraph_temporal import RunHandle, interrupt
from tenxgraph_temporal.runtime.connect import with_our_models
from tenxgraph_temporal.workflows import GraphRun

from ..support.app import App, eventually
from ..support.graphs import agent, call

RECORDED = sorted((Path(__file__).parent / "histories").glob("*.json"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
async def test_recorded_histories_replay(file: Path) -> None:
    """One history per shape of run, recorded by an earlier version: deploying this code breaks none of them."""
    replayer = Replayer(workflows=[GraphRun], data_converter=with_our_models(None))
    started = json.loads(file.read_text())["events"][0]["workflowExecutionStartedEventAttributes"]
    history = WorkflowHistory.from_json(started["workflowId"], file.read_text())
    if file.stem.startswith("broken"):
        with pytest.raises(Exception, match=r"[Nn]ondetermin"):
            await replayer.replay_workflow(history)
    else:
        await replayer.replay_workflow(history)


def test_there_are_recorded_histories() -> None:
    assert {file.stem for file in RECORDED} >= {"tools", "interrupt", "broken-order"}


async def test_a_history_replays_in_a_fresh_process(app: App, tmp_path: Path) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    thread_id = app.thread()
    async with app.worker(agent([add], [call("add", "1", a=1, b=2)], [call("add", "1", a=3, b=4)])):
        run = await app.start("agent", thread_id)
        await run.result()
    file = tmp_path / "history.json"
    file.write_text((await run.workflow.fetch_history()).to_json())
    script = (
        "import asyncio, os, sys\n"
        "from temporalio.client import WorkflowHistory\n"
        "from temporalio.worker import Replayer\n"
        "from tenxgraph_temporal.workflows import GraphRun\n"
        "from tenxgraph_temporal.runtime.connect import with_our_models\n"
        "history = WorkflowHistory.from_json(sys.argv[1], open(sys.argv[2]).read())\n"
        "replayer = Replayer(workflows=[GraphRun], data_converter=with_our_models(None))\n"
        "asyncio.run(replayer.replay_workflow(history))\n"
        "assert not [m for m in sys.modules if 'support.graphs' in m or 'asyncpg' in m], 'the loop needs no graph'\n"
        "os._exit(0)\n"  # the SDK's threads sometimes abort a short process that ends the usual way
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, f"thread-{thread_id}", str(file), stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


async def reset(app: App, run: RunHandle, event_id: int) -> RunHandle:
    """Reset a workflow to the end of its workflow task at ``event_id``, as the UI does."""
    description = await run.workflow.describe()
    await app.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=app.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=description.id, run_id=description.run_id),
            reason="test",
            request_id=f"{description.run_id}-{event_id}",
            workflow_task_finish_event_id=event_id,
        )
    )
    return app.graphs.handle(run.thread_id)


async def test_a_reset_to_any_point_runs_nothing_again(app: App) -> None:
    ran: list[str] = []

    def tool(n: int) -> str:
        ran.append(f"tool {n}")
        return str(n)

    graph = agent([tool], [call("tool", "1", n=1), call("tool", "2", n=2)], [call("tool", "1", n=3)])
    node = graph.nodes["model"].function
    assert node is not None

    def counted(state: object) -> object:
        ran.append("model")
        return node(state)

    object.__setattr__(graph.nodes["model"], "function", counted)
    thread_id = app.thread()
    async with app.worker(graph):
        run = await app.start("agent", thread_id)
        first = await run.result()
        before = (list(ran), await app.state(thread_id), len(await app.store.calls(thread_id)))
        history = json.loads((await run.workflow.fetch_history()).to_json())
        points = [int(e["eventId"]) for e in history["events"] if e["eventType"].endswith("WORKFLOW_TASK_COMPLETED")]
        assert len(points) >= 4
        for point in points:
            run = (
                await reset(app, run, point) if point == points[0] else await _reset_original(app, run, history, point)
            )
            again = await run.result()
            assert again.version == first.version
            assert (list(ran), await app.state(thread_id), len(await app.store.calls(thread_id))) == before, point


async def _reset_original(app: App, run: RunHandle, history: dict, point: int) -> RunHandle:  # type: ignore[type-arg]
    original = history["events"][0]["workflowExecutionStartedEventAttributes"]["originalExecutionRunId"]
    await app.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=app.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=f"thread-{run.thread_id}", run_id=original),
            reason="test",
            request_id=f"{original}-{point}-again",
            workflow_task_finish_event_id=point,
        )
    )
    return app.graphs.handle(run.thread_id)


async def test_a_reset_while_paused_asks_nobody_twice(app: App) -> None:
    asked: list[str] = []

    def ask() -> str:
        asked.append("asked")
        return str(interrupt("?"))

    thread_id = app.thread()
    async with app.worker(agent([ask], [call("ask", "1")])):
        run = await app.start("agent", thread_id)

        async def waits() -> bool:
            return bool(await run.interrupts())

        await eventually(waits)
        await run.answer("yes")
        await run.result()
        assert asked == ["asked", "asked"]
        history = json.loads((await run.workflow.fetch_history()).to_json())
        first = next(int(e["eventId"]) for e in history["events"] if e["eventType"].endswith("TASK_COMPLETED"))
        run = await reset(app, run, first)
        await run.result()
    assert asked == ["asked", "asked"]
    assert [m.text() for m in (await app.state(thread_id)).context if m.role == "tool"] == ["yes"]
