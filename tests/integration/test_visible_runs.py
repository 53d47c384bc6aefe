"""What Temporal's UI and a list of runs show of a run, and who may touch it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata

from tenxgraph_temporal import CompiledGraph, RunHandle, StateGraph, interrupt, open_interrupts
from tenxgraph_temporal.runtime.devstack import DevStack
from tenxgraph_temporal.runtime.errors import InputError
from tenxgraph_temporal.runtime.search_attributes import SEARCH_ATTRIBUTES, register
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore

from ..support.app import App, eventually
from ..support.graphs import StoryState
from ..support.namespaces import client_of_new_namespace


@pytest.fixture
async def app(stack: DevStack, store: PostgresStore, tmp_path: Path) -> AsyncIterator[App]:
    """In a namespace of its own, without search attributes, with a workflow cache (queries come while it works)."""
    corner = App(stack=stack, client=await client_of_new_namespace(stack), store=store, logs=tmp_path)
    corner.max_cached_workflows = 100
    yield corner
    await corner.replay_all()


def asking() -> CompiledGraph:
    def ask(state: StoryState) -> dict[str, Any]:
        return {"notes": [interrupt("one?", message="First"), interrupt("two?", message="Second")]}

    return StateGraph(StoryState, name="asks").add_node("ask", ask).set_entry_point("ask").compile()


async def details(run: RunHandle) -> str:
    metadata: WorkflowMetadata = await run.workflow.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details


async def test_without_search_attributes_memo_and_details_tell(app: App) -> None:
    async with app.worker(asking()):
        run = await app.start("asks", app.thread())
        (first,) = await eventually(run.interrupts)
        description = await run.workflow.describe()
        assert await description.memo() == {"TenxStatus": "paused"}
        assert not {pair.key.name for pair in description.typed_search_attributes} & set(SEARCH_ATTRIBUTES)
        assert "asks: t-" in str(await description.static_summary())
        assert await details(run) == f"`ask`, step 0\n\nWaiting for an answer:\n- `{first.interrupt_id}` node:ask:0"
        await run.answer("1")
        await eventually(run.interrupts)
        await run.answer("2")
        await run.result()
        assert await details(run) == "`__end__`, step 1"
        assert await (await run.workflow.describe()).memo() == {"TenxStatus": "running"}


async def test_with_search_attributes_runs_are_found(app: App) -> None:
    await register(app.client)
    thread_id = app.thread()

    async def listed(query: str) -> list[str]:
        return [execution.id async for execution in app.client.list_workflows(query)]

    async with app.worker(asking()):

        async def searchable() -> bool:  # a namespace takes a moment to know them
            probe = app.thread()
            app.graphs._searchable = True
            await app.start("asks", probe, user_id="prober")
            return app.graphs._searchable

        await eventually(searchable)
        run = await app.start("asks", thread_id, user_id="alice")
        hers = f'TenxUserId = "alice" AND TenxGraph = "asks" AND TenxThreadId = "{thread_id}"'
        paused = f'TenxStatus = "paused" AND {hers}'
        assert await eventually(lambda: listed(paused)) == [run.workflow.id]
        await run.answer("1")
        await eventually(run.interrupts)
        await run.answer("2")
        await run.result()
        await eventually(lambda: listed('TenxStatus = "running" AND TenxUserId = "alice"'))
        assert await listed('TenxStatus = "paused" AND TenxUserId = "alice"') == []


async def test_a_run_that_a_plain_client_starts_writes_no_attributes(app: App) -> None:
    """They may not be registered, and then a workflow that sets them would hang."""
    thread_id = app.thread()
    async with app.worker(asking()):
        handle = await app.client.start_workflow(
            "GraphRun",
            {"graph": "asks", "thread_id": thread_id, "input": {"messages": ["hi"]}},
            id=f"thread-{thread_id}",
            task_queue=app.queue,
        )
        run = app.graphs.handle(thread_id)
        await eventually(run.interrupts)
        assert await (await handle.describe()).memo() == {}
        await run.stop()


async def test_for_another_user_there_is_no_such_run(app: App) -> None:
    thread_id = app.thread()
    async with app.worker(asking()):
        run = await app.start("asks", thread_id, user_id="alice")
        await eventually(run.interrupts)
    hers, his = (app.graphs.handle(thread_id, user_id=user) for user in ("alice", "bob"))
    nowhere = app.graphs.handle(app.thread(), user_id="bob")
    for act in ("answer", "signal"):
        with pytest.raises(InputError, match=f"there is no run of thread '{thread_id}'"):
            await getattr(his, act)("1")
    for act in ("stop", "result", "interrupts"):
        with pytest.raises(InputError, match="there is no run of thread"):
            await getattr(his, act)()
        with pytest.raises(InputError, match="there is no run of thread"):
            await getattr(nowhere, act)()
    await hers.signal("1")
    async with app.worker(asking()):
        (second,) = await eventually(hers.interrupts)
        assert second.key == "node:ask:1"
        await hers.answer("2")
        await hers.result()


async def test_open_interrupts_by_user(app: App) -> None:
    async with app.worker(asking()):
        runs = {}
        for user in ("alice", "bob", "alice"):
            thread_id = app.thread()
            runs[thread_id] = await app.start("asks", thread_id, user_id=user)
            await eventually(runs[thread_id].interrupts)
        found = [waiting async for waiting in open_interrupts(app.store, user_id="alice")]
        first, _, third = runs
        assert [waiting.thread_id for waiting in found] == [third, first]
        assert {(waiting.user_id, waiting.request.message) for waiting in found} == {("alice", "First")}
        assert len([waiting async for waiting in open_interrupts(app.store)]) == 3
        for run in runs.values():
            await run.stop()
