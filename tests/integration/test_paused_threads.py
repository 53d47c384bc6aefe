"""What may happen to a thread while it waits: a message, a stop, another worker, another graph."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowFailureError

from tenxgraph_temporal import AgentState, CompiledGraph, StateGraph, interrupt
from tenxgraph_temporal.runtime.client import RunFailed, RunStopped
from tenxgraph_temporal.runtime.errors import InputError

from ..support.app import App, eventually
from ..support.graphs import agent, call, results
from ..support.pausing import paused, until_paused

pytestmark = pytest.mark.usefixtures("execution", "keeps_workflows")


async def test_a_new_message_on_a_paused_thread(app: App) -> None:
    def ask() -> str:
        return str(interrupt("really?"))

    def find() -> str:
        return "found"

    async def has_found() -> bool:
        return any(record.tool == "find" for record in await app.store.calls(thread_id))

    graph = agent([ask, find], [call("ask", "1"), call("find", "2")], answer="moved on", once=True)
    async with paused(app, graph) as (thread_id, run):
        await eventually(has_found)
        await run.workflow.terminate()
        with pytest.raises(RunFailed, match=r"waits for an answer to int_\w+ \(input_required\)"):
            await (await app.start("agent", thread_id, "something else")).result()
        await (await app.start("agent", thread_id, "never mind", config={"drop_interrupts": True})).result()
    state = await app.state(thread_id)
    assert [m.role for m in state.context][:5] == ["user", "assistant", "tool", "tool", "user"]
    assert "dropped" in results(state)[0]
    assert results(state)[1] == "found"


async def test_a_new_message_while_the_run_waits(app: App) -> None:
    def ask() -> str:
        return str(interrupt("really?"))

    graph = agent([ask], [call("ask", "1")], answer="moved on", once=True)
    async with paused(app, graph) as (thread_id, run):
        (ref,) = await run.interrupts()
        with pytest.raises(InputError, match=f"waits for an answer to {ref.interrupt_id} .* drop the question"):
            await app.start("agent", thread_id, "something else")
        await (await app.start("agent", thread_id, "never mind", config={"drop_interrupts": True})).result()
        with pytest.raises(RunStopped):
            await run.result()
        with pytest.raises(InputError, match=r"no run of thread .* is open"):
            await run.signal("late")
    state = await app.state(thread_id)
    assert [m.role for m in state.context] == ["user", "assistant", "tool", "user", "assistant"]
    assert state.context[-1].text() == "moved on"


async def test_a_thread_that_was_left_paused_can_be_resumed_by_a_new_run(app: App) -> None:
    def ask() -> str:
        return f"answer: {interrupt('?')}"

    graph = agent([ask], [call("ask", "1")])
    async with paused(app, graph) as (thread_id, run):
        await run.workflow.terminate()
        again = await app.start("agent", thread_id, None)  # waits again
        await until_paused(again)
        await again.workflow.terminate()
        with pytest.raises(RunFailed, match="its open interrupts are int_"):
            await _resume_with_a_wrong_id(app, thread_id)
        await (await app.start("agent", thread_id, None, resume="42")).result()
        with pytest.raises(RunFailed, match="there is nothing to resume"):
            await (await app.start("agent", thread_id, None, resume="43")).result()
    assert results(await app.state(thread_id)) == ["answer: 42"]


async def _resume_with_a_wrong_id(app: App, thread_id: str) -> None:
    try:
        await app.client.execute_workflow(
            "GraphRun",
            {"graph": "agent", "thread_id": thread_id, "input": {"resume": 1, "interrupt_id": "int_x"}},
            id=f"thread-{thread_id}",
            task_queue=app.queue,
        )
    except WorkflowFailureError as exc:
        raise RunFailed(str(exc.cause)) from exc


async def test_stop_while_paused(app: App) -> None:
    def ask() -> str:
        return str(interrupt("?"))

    async with paused(app, agent([ask], [call("ask", "1")], answer="next", once=True)) as (thread_id, run):
        await run.stop()
        with pytest.raises(RunStopped):
            await run.result()
        meta = (await app.state(thread_id)).execution_meta
        assert (meta.status, meta.interrupt_reason) == ("interrupted_after", "stop_requested")
        await (await app.start("agent", thread_id, "again")).result()
    assert "cancelled" in results(await app.state(thread_id))[0]


async def test_the_worker_is_replaced_while_paused_and_the_graph_changed(app: App) -> None:
    def ask() -> str:
        return str(interrupt("?"))

    thread_id = app.thread()
    async with app.worker(agent([ask], [call("ask", "1")])):
        run = await app.start("agent", thread_id)
        await until_paused(run)
    await run.workflow.signal("resume", {"value": "yes"})
    async with app.worker(agent([ask], [call("ask", "1")], answer="a new graph answers")):
        await run.result()
    state = await app.state(thread_id)
    assert results(state) == ["yes"]
    assert state.context[-1].text() == "a new graph answers"


async def test_a_paused_node_that_is_gone_is_a_clear_error(app: App) -> None:
    def ask(state: AgentState) -> str:
        return str(interrupt("?"))

    def graph(name: str) -> CompiledGraph:
        builder = StateGraph(name="g")
        builder.add_node(name, ask).set_entry_point(name)
        return builder.compile()

    thread_id = app.thread()
    async with app.worker(graph("old")):
        run = await app.start("g", thread_id)
        await until_paused(run)
    async with app.worker(graph("new")):
        await run.workflow.signal("resume", {"value": "yes"})
        with pytest.raises(RunFailed, match="node:old"):
            await run.result()
