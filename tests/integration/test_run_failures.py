"""What goes wrong in a run is saved, said readably, and leaves a thread that goes on."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tenxgraph_temporal import END, AgentState, Command, StateGraph, ToolNode, workflow_id_of
from tenxgraph_temporal.runtime.client import RunFailed

from ..support.app import App
from ..support.graphs import Counted, agent, asks, call, line, texts

pytestmark = pytest.mark.usefixtures("execution")


async def test_recursion_limit(app: App) -> None:
    builder = StateGraph(Counted, name="loop")

    def again(state: Counted) -> Command:
        return Command(update={"count": state.count + 1}, goto="again")

    builder.add_node("again", again)
    builder.set_entry_point("again")
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        run = await app.start("loop", thread_id, config={"recursion_limit": 4})
        with pytest.raises(RunFailed, match="recursion_limit") as failure:
            await run.result()
    assert failure.value.code == "RECURSION_001"
    state = await app.state(thread_id, Counted)
    assert state.count == 4
    assert state.execution_meta.status == "error"
    assert "RECURSION_001" in state.execution_meta.internal_data["error"]


@pytest.mark.parametrize("limit", [1, 2])  # the model's step is the last one allowed, or the tools'
async def test_the_run_after_one_that_took_too_many_steps(app: App, limit: int) -> None:
    """It goes on from there: the model is not asked again for what it has asked for, nor is a tool run again."""
    done: list[str] = []

    def act() -> str:
        done.append("act")
        return "acted"

    thread_id = app.thread()
    async with app.worker(agent([act], [call("act", "1")])):
        with pytest.raises(RunFailed, match="recursion_limit"):
            await (await app.start("agent", thread_id, config={"recursion_limit": limit})).result()
        await (await app.start("agent", thread_id, None)).result()
    state = await app.state(thread_id)
    assert [message.role for message in state.context] == ["user", "assistant", "tool", "assistant"]
    assert done == ["act"]
    assert state.execution_meta.status == "completed"


async def test_the_run_after_one_whose_tools_led_nowhere(app: App) -> None:
    """While the router is wrong it says so again, and adds nothing; corrected, it goes on behind the tools."""
    correct = False
    done: list[str] = []

    def act() -> str:
        done.append("act")
        return "acted"

    def route(state: AgentState) -> str:
        return "last" if correct else "lost"

    builder = StateGraph(name="g")
    builder.add_node("model", lambda state: asks(call("act", "1")))
    builder.add_node("tools", ToolNode([act])).add_node("last", lambda state: "done")
    builder.set_entry_point("model").add_edge("model", "tools").add_edge("last", END)
    builder.add_conditional_edges("tools", route)
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        for messages in ("hi", "again"):
            with pytest.raises(RunFailed, match="leads to 'lost', which is no node") as failure:
                await (await app.start("g", thread_id, messages)).result()
            assert failure.value.code == "GRAPH_ROUTING_001"
        correct = True
        await (await app.start("g", thread_id, "once more")).result()
    assert texts(await app.state(thread_id)) == [
        "user: hi",
        "assistant: ",
        "tool: acted",
        "user: once more",
        "assistant: done",
    ]
    assert done == ["act"]


async def test_a_node_that_raises_fails_the_run_readably(app: App) -> None:
    def broken(state: AgentState) -> None:
        raise LookupError("no such customer")

    thread_id = app.thread()
    async with app.worker(line(broken)):
        run = await app.start("line", thread_id)
        with pytest.raises(WorkflowFailureError) as failure:
            await run.workflow.result()
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "NODE_001"
    assert "node 'n0' failed: LookupError: no such customer" in cause.message
    causes = [cause.cause]
    while causes[-1] is not None:
        causes.append(causes[-1].__cause__)
    assert [getattr(one, "type", None) for one in causes[:-1]] == [None, "NODE_001", "NodeError", "LookupError"]
    meta = (await app.state(thread_id)).execution_meta
    assert (meta.status, meta.current_node) == ("error", "n0")
    assert "no such customer" in meta.internal_data["error"]


async def test_a_failed_run_goes_on_from_where_it_stood(app: App) -> None:
    fail = True
    visits: list[str] = []

    def first(state: AgentState) -> None:
        visits.append("first")

    def second(state: AgentState) -> str:
        visits.append("second")
        if fail:
            raise RuntimeError("not today")
        return "made it"

    thread_id = app.thread()
    async with app.worker(line(first, second)):
        with pytest.raises(RunFailed):
            await (await app.start("line", thread_id)).result()
        fail = False
        await (await app.start("line", thread_id, None)).result()
    assert visits == ["first", "second", "second"]
    state = await app.state(thread_id)
    assert texts(state) == ["user: hi", "assistant: made it"]
    assert "error" not in state.execution_meta.internal_data


async def test_a_router_that_names_no_node(app: App) -> None:
    builder = StateGraph(name="g")
    builder.add_node("a", lambda state: "done with a")
    builder.set_entry_point("a").add_conditional_edges("a", lambda state: "nowhere")
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        run = await app.start("g", thread_id)
        with pytest.raises(RunFailed, match=r"'nowhere', which is no node of graph 'g' \(a\)") as failure:
            await run.result()
    assert failure.value.code == "GRAPH_ROUTING_001"
    assert texts(await app.state(thread_id))[-1] == "assistant: done with a"  # the step's outcome is kept


@pytest.mark.parametrize(
    ("entered", "message"),
    [
        ({"input": {}}, "has no messages yet"),
        ({"input": {"messages": 5}}, "pass a list of messages"),
        ({"input": {"messages": [{"role": "wizard"}]}}, r"input\['messages'\]\[0\] is no message: role"),
        ({"input": {"message": "hi"}}, "it takes 'messages' and 'state'"),
        ({"input": {"messages": ["hi"], "state": {"colour": 1}}}, "has no field colour"),
        ({"graph": "other", "input": {"messages": ["hi"]}}, r"hosts no graph 'other' \(it hosts line\)"),
        ({"graph": 7}, "graph"),
        ({"thread_id": "x" * 300, "input": {"messages": ["hi"]}}, "255"),
    ],
)
async def test_wrong_input_is_a_clear_failure(app: App, entered: dict[str, Any], message: str) -> None:
    thread_id = entered.get("thread_id") or app.thread()
    async with app.worker(line(lambda state: None)):
        with pytest.raises(WorkflowFailureError) as failure:
            await app.client.execute_workflow(
                "GraphRun",
                {"graph": "line", "thread_id": thread_id, **entered},
                id=workflow_id_of(thread_id),
                task_queue=app.queue,
            )
    import re

    assert re.search(message, str(failure.value.cause)), failure.value.cause
    assert await app.store.load_head(thread_id[:255], None) is None


async def test_config_that_makes_no_sense_falls_back(app: App, caplog: pytest.LogCaptureFixture) -> None:
    config = {"recursion_limit": "many", "node_timeout": "soon", "tool_timeout": True}
    await app.run(agent([], answer="fine"), config=config)
    warnings = " ".join(record.message for record in caplog.records)
    assert "recursion_limit='many'" in warnings
    assert "node_timeout='soon'" in warnings
