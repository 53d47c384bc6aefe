"""The run loop on real servers: nodes, tools, edges, ends."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from tenxgraph_temporal import (
    END,
    AgentState,
    Command,
    Message,
    RunContext,
    StateGraph,
    ToolContext,
    ToolNode,
    ToolResult,
    create_handoff_tool,
    workflow_id_of,
)
from tenxgraph_temporal.runtime.errors import InputError

from ..support.app import App, activities
from ..support.graphs import Counted, agent, asks, call, line, texts, wants_tools

pytestmark = pytest.mark.usefixtures("execution")


class Big(AgentState):
    blob: str = ""


async def test_a_conversation_with_tools(app: App) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    async def shout(text: str) -> str:
        return text.upper()

    graph = agent([add, shout], [call("add", "1", a=1, b=2), call("shout", "2", text="hey")], answer="3, HEY")
    thread_id, state = await app.run(graph)
    assert texts(state) == ["user: hi", "assistant: ", "tool: 3", "tool: HEY", "assistant: 3, HEY"]
    assert state.execution_meta.status == "completed"
    assert state.execution_meta.current_node == END
    rows = await app.store.list_messages(thread_id, None)
    assert [row.message_id for row in rows] == [message.message_id for message in state.context]
    assert [c.status for c in await app.store.calls(thread_id)] == ["finished", "finished"]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (lambda state: "text", ["user: hi", "assistant: text"]),
        (lambda state: Message.text_message("m", role="assistant"), ["user: hi", "assistant: m"]),
        (
            lambda state: [Message.text_message("a", role="assistant"), "b"],
            ["user: hi", "assistant: a", "assistant: b"],
        ),
        (lambda state: {"count": 2, "log": ["x"], "messages": ["m"]}, ["user: hi", "assistant: m"]),
        (lambda state: Command(update={"count": 2, "log": ["x"]}), ["user: hi"]),
        (lambda state: Counted(count=2, log=["x"], context=[Message.text_message("n")]), ["user: hi", "user: n"]),
        (lambda state: None, ["user: hi"]),
    ],
)
async def test_what_a_node_may_return(app: App, returned: Any, expected: list[str]) -> None:
    _, state = await app.run(line(returned, state=Counted))
    assert isinstance(state, Counted)
    assert texts(state) == expected
    if "count" in returned.__code__.co_names or 2 in (returned.__code__.co_consts or ()):
        assert (state.count, state.log) == (2, ["x"])


async def test_a_node_may_change_its_state_in_place(app: App) -> None:
    def node(state: Counted) -> None:
        state.count += 1
        state.log.append("here")

    _, state = await app.run(line(node, node, state=Counted))
    assert isinstance(state, Counted)
    assert (state.count, state.log) == (2, ["here", "here"])


async def test_nodes_get_state_config_and_context(app: App) -> None:
    seen: dict[str, Any] = {}

    async def node(state: AgentState, config: dict[str, Any], context: RunContext) -> None:
        seen.update(config=config, attempt=context.attempt, node=context.node)

    thread_id, _ = await app.run(line(node), user_id="ada", config={"tone": "kind"})
    assert seen["config"]["tone"] == "kind"
    assert (seen["config"]["thread_id"], seen["config"]["user_id"]) == (thread_id, "ada")
    assert (seen["attempt"], seen["node"]) == (1, "n0")


async def test_tools_get_what_they_ask_for(app: App) -> None:
    seen: dict[str, Any] = {}

    def tool(x: int, state: Counted, config: dict[str, Any], tool_call_id: str, context: ToolContext) -> str:
        seen.update(x=x, user=config["user_id"], call=tool_call_id, key=context.idempotency_key, n=len(state.context))
        return "ok"

    await app.run(agent([tool], [call("tool", "c9", x=4)], state=Counted), user_id="ada")
    assert (seen["x"], seen["user"], seen["call"], seen["n"]) == (4, "ada", "c9", 2)
    assert len(seen["key"]) == 45


async def test_tools_change_state_and_parallel_changes_are_merged(app: App) -> None:
    def note(text: str, state: Counted) -> str:
        state.log.append(text)
        return text

    def count(state: Counted) -> ToolResult:
        return ToolResult(message="counted", state={"count": 7})

    calls = [call("note", "1", text="a"), call("count", "2"), call("note", "3", text="b")]
    _, state = await app.run(agent([note, count], calls, calls, state=Counted))
    assert isinstance(state, Counted)
    assert (state.count, state.log) == (7, ["a", "b", "a", "b"])


async def test_a_command_from_a_tool_sends_the_run_elsewhere(app: App) -> None:
    def escalate() -> Command:
        return Command(goto="human", update={"count": 1}, message="escalated")

    builder = StateGraph(Counted, name="g")
    builder.add_node("model", lambda state: asks(call("escalate", "1")))
    builder.add_node("tools", ToolNode([escalate]))
    builder.add_node("human", lambda state: "a human answers")
    builder.set_entry_point("model").add_edge("model", "tools").add_edge("tools", "model")
    _, state = await app.run(builder.compile())
    assert isinstance(state, Counted)
    assert texts(state)[-2:] == ["tool: escalated", "assistant: a human answers"]
    assert state.count == 1


async def test_a_handoff_moves_on_before_any_tool_runs(app: App) -> None:
    ran: list[str] = []

    def side_effect() -> str:
        ran.append("x")
        return "no"

    builder = StateGraph(name="g")
    builder.add_node("model", lambda state: asks(call("side_effect", "1"), call("transfer_to_expert", "2")))
    builder.add_node("tools", ToolNode([side_effect, create_handoff_tool("expert")]))
    builder.add_node("expert", lambda state: "the expert answers")
    builder.set_entry_point("model").add_edge("model", "tools").add_edge("tools", "model").add_edge("expert", END)
    _, state = await app.run(builder.compile())
    assert ran == []
    assert texts(state)[-1] == "assistant: the expert answers"
    answered = {b.call_id for m in state.context if m.role == "tool" for b in m.content}  # type: ignore[union-attr]
    assert answered == {"1", "2"}


async def test_bad_calls_are_told_to_the_model_and_siblings_run(app: App) -> None:
    ran: list[int] = []

    def good(x: int) -> str:
        ran.append(x)
        return "fine"

    def raises() -> str:
        raise RuntimeError("the printer is on fire")

    bad_json = {"id": "b", "type": "function", "function": {"name": "good", "arguments": "{nope"}}
    calls = [
        call("good", "a", x=1),
        bad_json,
        call("missing_tool", "c"),
        call("raises", "d"),
        call("good", "e", y=1),
        call("good", "f", x="ten"),
    ]
    thread_id, state = await app.run(agent([good, raises], calls))
    assert ran == [1]
    results = [m.text() for m in state.context if m.role == "tool"]
    assert len(results) == 6
    assert results[0] == "fine"
    assert "not valid JSON" in results[1]
    assert "'missing_tool' does not exist" in results[2]
    assert "the printer is on fire" in results[3]
    assert "unknown argument: y" in results[4]
    assert "missing argument: x" in results[4]
    assert "x: Input should be a valid integer" in results[5]
    statuses = {c.ledger_key.rpartition(":")[2]: c.status for c in await app.store.calls(thread_id)}
    assert statuses == {"a": "finished", "b": "failed", "c": "failed", "d": "failed", "e": "failed", "f": "failed"}


async def test_distinct_calls_never_share_a_result(app: App) -> None:
    """Ids that repeat within a message and across turns, empty ids, odd ones, long ones with one prefix."""
    seen: list[str] = []

    def record(value: str) -> str:
        seen.append(value)
        return value

    long = "x" * 300
    ids = ["call_1", "call_1", "", "", "a:b", "é\0:", "call_1_2", long + "a", long + "b"]
    turn = [call("record", call_id, value=f"v{i}") for i, call_id in enumerate(ids)]
    again = [call("record", call_id, value=f"w{i}") for i, call_id in enumerate(ids)]
    thread_id, state = await app.run(agent([record], turn, again))
    expected = [f"v{i}" for i in range(len(ids))] + [f"w{i}" for i in range(len(ids))]
    assert sorted(seen) == sorted(expected)
    assert [m.text() for m in state.context if m.role == "tool"] == expected
    assert len(await app.store.calls(thread_id)) == len(expected)
    for message in state.context:
        if message.tools_calls:
            settled = [c["id"] for c in message.tools_calls]
            assert len(set(settled)) == len(settled)


async def test_sync_code_runs_in_threads_and_blocks_nobody(app: App) -> None:
    names: list[str] = []
    barrier = threading.Barrier(3, timeout=20)

    def wait() -> str:
        names.append(threading.current_thread().name)
        barrier.wait()  # passes only if all three run at once
        return "ok"

    await app.run(agent([wait], [call("wait", str(i)) for i in range(3)]))
    assert all(name == "tool 'wait'" for name in names), names


async def test_one_run_per_thread(app: App) -> None:
    release = asyncio.Event()

    async def waits(state: AgentState) -> None:
        await release.wait()

    thread_id = app.thread()
    async with app.worker(line(waits)):
        run = await app.start("line", thread_id)
        with pytest.raises(InputError, match=f"a run of thread '{thread_id}' is open"):
            await app.start("line", thread_id)
        release.set()
        await run.result()
        await (await app.start("line", thread_id, "again")).result()
    assert [m.text() for m in (await app.state(thread_id)).context] == ["hi", "again"]


async def test_a_workflow_id_that_would_not_exclude(app: App) -> None:
    async with app.worker(line(lambda state: None)):
        with pytest.raises(WorkflowFailureError) as failure:
            await app.client.execute_workflow(
                "GraphRun", {"graph": "line", "thread_id": "t1"}, id=f"own-{app.thread()}", task_queue=app.queue
            )
    assert workflow_id_of("t1") in str(failure.value.cause)


async def test_history_holds_ids_only_and_does_not_grow_with_the_state(app: App, execution: str) -> None:
    def lookup(secret: str) -> str:
        return "result-text-" + secret

    graphs = [
        agent([lookup], [call("lookup", "1", secret="argument-text")], state=Big, name="agent", answer="answer-text")
    ]
    sizes = {}
    for size in (10, 5_000_000):
        thread_id = app.thread()
        async with app.worker(*graphs):
            run = await app.start("agent", thread_id, "question-text")
            await run.result()
        history = await run.workflow.fetch_history()
        events = [json.dumps(e) for e in json.loads(history.to_json())["events"]]
        import base64
        import re

        decoded = "".join(
            base64.b64decode(data).decode(errors="replace")
            for event in events[1:]
            for data in re.findall(r'"data": "([^"]+)"', event)
        )
        for forbidden in ("argument-text", "result-text", "answer-text", "question-text"):
            assert forbidden not in decoded
        sizes[size] = len(history.to_json())
        step = {"activity": ["tool:lookup"], "batch": ["tools:tools"], "local": []}[execution]
        assert activities(history) == ["node:model", *step, "node:model"]
    assert max(sizes.values()) - min(sizes.values()) < 500, sizes


async def test_a_5_mb_state_field(app: App) -> None:
    def grow(state: Big) -> dict[str, Any]:
        return {"blob": "b" * 5_000_000}

    def look(state: Big) -> str:
        return str(len(state.blob))

    def model(state: Big) -> Any:
        return asks(call("look", "1")) if state.context[-1].role == "user" else "done"

    builder = StateGraph(Big, name="big")
    builder.add_node("grow", grow).add_node("model", model).add_node("tools", ToolNode([look]))
    builder.set_entry_point("grow").add_edge("grow", "model")
    builder.add_conditional_edges("model", wants_tools, ["tools", END]).add_edge("tools", "model")
    thread_id = app.thread()
    async with app.worker(builder.compile()):
        run = await app.start("big", thread_id)
        await run.result()
    state = await app.state(thread_id, Big)
    assert [m.text() for m in state.context if m.role == "tool"] == ["5000000"]
    assert len((await run.workflow.fetch_history()).to_json()) < 60_000


async def test_deadlines(app: App) -> None:
    cancelled: list[str] = []

    async def hangs() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("async")
            raise
        return "late"

    def hangs_in_a_thread(context: ToolContext) -> str:
        while not context.cancelled:
            time.sleep(0.01)
        cancelled.append("sync")
        return "late"

    calls = [call("hangs", "1"), call("hangs_in_a_thread", "2")]
    started = time.monotonic()
    _, state = await app.run(agent([hangs, hangs_in_a_thread], calls), config={"tool_timeout": 0.5})
    assert time.monotonic() - started < 15
    assert sorted(cancelled) == ["async", "sync"]
    for message in (m for m in state.context if m.role == "tool"):
        assert "NODE_TIMEOUT_002" in message.text()
    assert texts(state)[-1] == "assistant: done"
