"""Many write to one thread at once: processes on the store, and runs that Temporal cannot keep apart."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
from temporalio.worker import Worker

from tenxgraph_temporal import Command, GraphClient, StateGraph, TenxGraphPlugin
from tenxgraph_temporal.examples.process import Process, python_process
from tenxgraph_temporal.runtime.client import RunFailed
from tenxgraph_temporal.runtime.state.encoding import load_json
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore

from ..support.app import App
from ..support.graphs import StoryState
from ..support.namespaces import client_of_new_namespace
from .state_writer import THREAD


async def test_processes_that_write_to_one_thread(store: PostgresStore, postgres_dsn: str) -> None:
    """With writers killed and connections cut: dense versions, no lost update, nothing acknowledged is missing."""
    outputs: list[Process] = []

    async def writer(seconds: float) -> None:
        module = "tenxgraph_temporal.tests.faults.state_writer"
        async with python_process(module, postgres_dsn, store.schema) as process:
            outputs.append(process)
            await process.until("acknowledged")
            await asyncio.sleep(seconds)
            await process.kill()

    async def cut() -> None:
        other = await asyncpg.connect(postgres_dsn)
        try:
            while True:
                await asyncio.sleep(random.uniform(0.05, 0.3))
                await other.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE query LIKE $1 AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1",
                    f'%"{store.schema}".%',
                )
        finally:
            await other.close()

    async def four_and_their_successors() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(writer(random.uniform(0.5, 2)))
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(writer(random.uniform(0.5, 1)))

    cutting = asyncio.create_task(cut())
    await four_and_their_successors()
    cutting.cancel()
    await asyncio.gather(cutting, return_exceptions=True)
    acknowledged = {
        commit_id: int(version)
        for process in outputs
        for word, version, commit_id in (line.split() for line in process.output.splitlines() if line.count(" ") == 2)
        if word == "acknowledged"
    }
    await check_history(store, acknowledged)


async def check_history(store: PostgresStore, acknowledged: dict[str, int]) -> None:
    rows = await store.pool.fetch(f'SELECT * FROM "{store.schema}".states ORDER BY version')
    versions = [row["version"] for row in rows]
    assert versions == list(range(1, len(rows) + 1)), "dense and unique"
    said: list[str] = []
    for row in rows:
        state = load_json(row["state_data"])
        assert state["count"] == row["version"], "each goes on from the one before"
        assert state["said"][: len(said)] == said
        said = state["said"]
    written = {load_json(row["meta"])["tenxgraph_temporal"]["run_id"]: row["version"] for row in rows}
    assert len(written) == len(rows), "no commit was written twice"
    assert acknowledged.items() <= written.items()
    assert len(acknowledged) > 50
    assert Counter(row.message_id for row in await store.list_messages(THREAD, None, limit=100_000)) == Counter(said)
    assert {record.ledger_key for record in await store.calls(THREAD)} == written.keys()


async def test_ten_runs_race_on_one_thread(app: App) -> None:
    """In ten namespaces, where Temporal cannot exclude them: one winner per version, a clear error for the rest."""

    async def step(state: StoryState, config: dict[str, Any]) -> Command:
        await asyncio.sleep(random.uniform(0, 0.05))
        mine = config["meta"]["racer"]
        return Command(update={"notes": [mine]}, goto="step" if state.notes.count(mine) < 4 else "__end__")

    graph = StateGraph(StoryState, name="race").add_node("step", step).set_entry_point("step").compile()
    thread_id = app.thread()
    clients = [await client_of_new_namespace(app.stack) for _ in range(10)]
    async with AsyncExitStack() as stack:
        for client in clients:
            plugin = TenxGraphPlugin([graph], app.store)
            await stack.enter_async_context(Worker(client, task_queue=app.queue, plugins=[plugin]))

        async def race(number: int) -> Any:
            await asyncio.sleep(random.uniform(0, 0.3))
            graphs = GraphClient(clients[number], task_queue=app.queue)
            config = {"meta": {"racer": f"racer-{number}"}}
            run = await graphs.start("race", thread_id, f"from {number}", config=config)
            return await run.result()

        outcomes = await asyncio.gather(*(race(number) for number in range(10)), return_exceptions=True)

    winners = {number for number, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)}
    assert winners
    for number in set(range(10)) - winners:
        failure = outcomes[number]
        assert isinstance(failure, RunFailed), failure
        assert "STORAGE_CONFLICT_001" in str(failure)
        assert f"thread '{thread_id}' was modified by another execution (expected version" in str(failure)
    history = [v.version for v in await app.store.list_versions(thread_id, None)]
    assert history == list(range(history[0], history[-1] - 1, -1))
    state = await app.state(thread_id, StoryState)
    for number in winners:
        assert state.notes.count(f"racer-{number}") == 5
    said = {m.text() for m in state.context}
    assert {f"from {number}" for number in winners} <= said
    rows = [row.message_id for row in await app.store.list_messages(thread_id, None)]
    assert sorted(rows) == sorted(m.message_id for m in state.context)
