"""Keys that change while runs are open, and workers and clients that lack them."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from tenxgraph_temporal import EncryptionKeys, tool
from tenxgraph_temporal.runtime.errors import EncryptionError
from tenxgraph_temporal.runtime.progress import follow, pending_steps

from ..support.app import App, eventually
from ..support.encryption import (
    ANSWERED,
    ARGUED,
    BOTH,
    K1,
    K2,
    NEW,
    REFUNDS,
    SAID,
    key_ids,
    raw_history,
    readable,
    variable,
    with_keys,
)
from ..support.graphs import agent, call
from ..support.pausing import until_paused


async def test_rotation_while_a_run_is_open(app: App) -> None:
    """Begun under the old key, finished by a worker that has it only to decrypt."""
    old, new = await with_keys(app, K1), await with_keys(app, BOTH)
    thread_id = app.thread()
    async with app.process(REFUNDS, TENXGRAPH_ENCRYPTION_KEYS=variable(K1)) as worker:
        run = await old.start("refunds", thread_id, SAID)
        await until_paused(run)
        await worker.terminate()
    async with app.process(REFUNDS, TENXGRAPH_ENCRYPTION_KEYS=variable(BOTH)):
        resumed = new.graphs.handle(thread_id)
        await resumed.answer({"approved": True})
        await resumed.result()
    assert key_ids(await raw_history(app, run)) == {"k1", "k2"}
    with pytest.raises(EncryptionError, match=r"'k2', and this process has the keys k1; set TENXGRAPH_ENCRYPTION_KEYS"):
        await old.graphs.handle(thread_id).result()
    await new.replay_all()


async def test_switched_on_while_a_run_is_open(app: App) -> None:
    keyed = await with_keys(app, K1)
    thread_id = app.thread()
    async with app.process(REFUNDS) as worker:
        run = await app.graphs.start("refunds", thread_id, SAID)
        await until_paused(run)
        await worker.terminate()
    async with app.process(REFUNDS, TENXGRAPH_ENCRYPTION_KEYS=variable(K1)):
        await keyed.graphs.handle(thread_id).answer({"approved": True, "note": ANSWERED})
        await keyed.graphs.handle(thread_id).result()
    history = await raw_history(app, run)
    assert SAID.encode() in readable(history)
    assert ANSWERED.encode() not in readable(history)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (EncryptionKeys(), "encrypted with the key 'k1', and this process has no keys; set TENXGRAPH_ENCRYPTION_KEYS"),
        (K2, "encrypted with the key 'k1', and this process has the keys k2; set TENXGRAPH_ENCRYPTION_KEYS"),
        (EncryptionKeys({"k1": NEW}), "cannot be decrypted with the key 'k1'"),
    ],
    ids=["no keys", "another key", "another key of that id"],
)
async def test_a_worker_that_lacks_the_key(app: App, encrypted: App, keys: EncryptionKeys, problem: str) -> None:
    """It says so, in its log and in the history; the run waits for a worker that has it, and loses nothing."""
    thread_id = app.thread()
    async with app.process(REFUNDS, TENXGRAPH_ENCRYPTION_KEYS=variable(keys)) as worker:
        run = await encrypted.start("refunds", thread_id, SAID)
        assert problem in await worker.until(problem)
        assert SAID not in worker.output

        async def told() -> Any:
            history = await raw_history(app, run)
            return [e for e in history.events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED]

        (event, *_) = await eventually(told)
        assert problem in event.workflow_task_failed_event_attributes.failure.message, "for all to read"
        async for step in follow(encrypted.client, run.workflow.id, None):
            assert step.activity == "workflow task"
            assert problem in step.detail
            break
        await run.workflow.signal("resume", {"value": {"approved": True}})
    async with app.process(REFUNDS, TENXGRAPH_ENCRYPTION_KEYS=variable(K1)):
        await run.result()
    assert "Refunded" in " ".join(message.text() for message in (await app.state(thread_id)).context)


async def test_a_tool_on_a_worker_that_lacks_the_key(app: App, encrypted: App) -> None:
    """As many attempts as it takes, for they say nothing about the tool; then a worker comes that has the key."""

    @tool(task_queue=f"{app.queue}-gpu")
    def render(what: str) -> str:
        return f"rendered {what}"

    graph = agent([render], [call("render", "c1", what=ARGUED)])
    thread_id = app.thread()
    async with encrypted.worker(graph):
        async with app.worker(graph, task_queue=f"{app.queue}-gpu"):
            run = await encrypted.start("agent", thread_id, SAID)

            async def told() -> Any:
                return [s for s in await pending_steps(encrypted.client, run.workflow.id) if s.attempt > 1]

            (step, *_) = await eventually(told)
            assert step.activity == "tool:render"

            async def given_up_once() -> Any:
                return any(
                    event.event_type == EventType.EVENT_TYPE_TIMER_STARTED
                    for event in (await run.workflow.fetch_history()).events
                )

            await eventually(given_up_once, timeout=60)
        async with encrypted.worker(graph, task_queue=f"{app.queue}-gpu"):
            await run.result()
    assert f"rendered {ARGUED}" in [message.text() for message in (await app.state(thread_id)).context]


async def test_a_client_that_lacks_the_key(app: App, encrypted: App) -> None:
    async with encrypted.worker(agent([])):
        run = await encrypted.start("agent", app.thread(), SAID)
        await run.result()
    with pytest.raises(EncryptionError, match="this process has no keys"):
        await app.graphs.handle(run.thread_id).result()
