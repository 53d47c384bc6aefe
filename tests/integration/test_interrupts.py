"""Questions that nodes and tools ask, and their answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenxgraph_temporal import AgentState, RunHandle, StateGraph, interrupt
from tenxgraph_temporal.runtime.errors import InputError

from ..support.app import App, eventually
from ..support.graphs import agent, call, results
from ..support.pausing import paused

pytestmark = pytest.mark.usefixtures("execution", "keeps_workflows")


async def test_a_tool_asks_and_finished_siblings_do_not_run_again(app: App) -> None:
    ran: list[str] = []

    def lookup() -> str:
        ran.append("lookup")
        return "found"

    async def refund(amount: int) -> str:
        ran.append("refund")
        decision = interrupt({"amount": amount}, message=f"Refund {amount}?")
        return f"refunded {amount}" if decision and decision["approved"] else "declined"

    graph = agent([lookup, refund], [call("lookup", "1"), call("refund", "2", amount=5)])
    async with paused(app, graph) as (thread_id, run):
        meta = (await app.state(thread_id)).execution_meta
        assert (meta.status, meta.interrupted_node, meta.interrupt_reason) == (
            "interrupted_before",
            "tools",
            "interrupt",
        )
        assert meta.interrupt_data is not None
        asked = meta.interrupt_data["interrupt"]
        assert asked["key"] == "tool:2:0"
        assert asked["value"] == {"amount": 5}
        assert asked["message"] == "Refund 5?"
        assert asked["tool_call_id"] == "2"
        description = await run.workflow.describe()
        assert description.status is not None and description.status.name == "RUNNING"
        await run.workflow.signal("resume", {"value": {"approved": True}})
        await run.result()
    assert ran.count("lookup") == 1
    assert ran.count("refund") == 2
    state = await app.state(thread_id)
    assert results(state) == ["found", "refunded 5"]
    assert "interrupt_resume" not in state.execution_meta.internal_data


async def test_a_node_asks_twice_and_both_answers_are_kept(app: App) -> None:
    seen: list[Any] = []

    def node(state: AgentState) -> str:
        name = interrupt("name?")
        colour = interrupt("colour?")
        seen.append((name, colour))
        return f"{name} likes {colour}"

    builder = StateGraph(name="g")
    builder.add_node("ask", node).set_entry_point("ask")
    async with paused(app, builder.compile()) as (thread_id, run):
        first = (await run.interrupts())[0]
        await run.answer("Ada")
        await eventually(lambda: _new_interrupt(run, first.interrupt_id))
        await run.answer("green")
        await run.result()
    assert seen == [("Ada", "green")]
    assert (await app.state(thread_id)).context[-1].text() == "Ada likes green"


async def _new_interrupt(run: RunHandle, old: str) -> bool:
    return [ref.interrupt_id for ref in await run.interrupts()] not in ([old], [])


async def test_several_at_once_are_answered_in_any_order_and_go_on_at_once(app: App) -> None:
    done: list[str] = []

    def ask(name: str) -> str:
        answer = interrupt({"name": name})
        done.append(name)
        return f"{name}={answer}"

    calls = [call("ask", f"c{i}", name=f"n{i}") for i in range(3)]
    async with paused(app, agent([ask], calls), 3) as (thread_id, run):
        meta = (await app.state(thread_id)).execution_meta
        assert meta.interrupt_data is not None
        asked = {item["tool_call_id"]: item["id"] for item in meta.interrupt_data["interrupts"]}
        assert set(asked) == {"c0", "c1", "c2"}
        with pytest.raises(InputError, match="3 interrupts are open"):
            await run.answer("x")
        await run.answer("two", interrupt_id=asked["c2"])

        async def second_done() -> bool:
            return done == ["n2"]

        await eventually(second_done)  # it went on without waiting for the others
        await run.answer("zero", interrupt_id=asked["c0"])
        with pytest.raises(InputError, match="was answered already"):
            await run.answer("again", interrupt_id=asked["c2"])
        await run.answer("one")
        await run.result()
    assert results(await app.state(thread_id)) == ["n0=zero", "n1=one", "n2=two"]
    assert sorted(done) == ["n0", "n1", "n2"]


async def test_answers_that_fit_nothing_are_ignored_visibly(app: App) -> None:
    def ask() -> str:
        return str(interrupt("?"))

    async with paused(app, agent([ask], [call("ask", "1")])) as (thread_id, run):
        for nonsense in ("text", 5, {"interrupt_id": "x"}, {"interrupt_id": 7, "value": 1}, None):
            await run.workflow.signal("resume", nonsense)

        async def counted() -> bool:
            return bool((await run.workflow.query("status"))["ignored_answers"] == 5)

        await eventually(counted)
        status = await run.workflow.query("status")
        assert status["status"] == "paused"
        await run.workflow.signal("resume", {"value": "first"})
        await run.workflow.signal("resume", {"value": "second"})
        await run.result()
    assert results(await app.state(thread_id)) == ["first"]


async def test_an_answer_sent_twice_does_not_answer_the_next_question(app: App) -> None:
    """Nobody has seen that one yet."""

    def ask() -> str:
        return f"{interrupt('first?')}, {interrupt('second?')}"

    async with paused(app, agent([ask], [call("ask", "1")])) as (thread_id, run):
        for _ in range(2):
            await run.workflow.signal("resume", {"value": "yes"})

        async def second_is_open() -> bool:
            return [ref.key for ref in await run.interrupts()] == ["tool:1:1"]

        await eventually(second_is_open)
        status = await run.workflow.query("status")
        assert status["ignored_answers"] == 1
        assert "name the one that is meant" in status["last_ignored"][0]
        await run.answer("no")
        await run.result()
    assert results(await app.state(thread_id)) == ["yes, no"]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"response_schema": {"type": "strng"}}, "is no JSON Schema"),
        ({"response_schema": {"type": "string", "pattern": "("}}, "is no JSON Schema"),
        ({"response_schema": {"required": "approved"}}, "is no JSON Schema"),
        ({"timeout": "soon"}, "is a number of seconds or a timedelta, not 'soon'"),
        ({"timeout": True}, "is a number of seconds or a timedelta, not True"),
        ({"timeout": 60, "on_timeout": "error"}, "pass OnTimeout.ERROR"),
    ],
)
async def test_a_question_that_is_wrong_is_not_asked(app: App, question: dict[str, Any], said: str) -> None:
    def ask() -> str:
        return str(interrupt("?", **question))

    _, state = await app.run(agent([ask], [call("ask", "1")]))
    assert said in results(state)[0]


async def test_an_answer_that_is_too_large_is_refused(app: App) -> None:
    def ask() -> str:
        return str(len(interrupt("?")))

    async with paused(app, agent([ask], [call("ask", "1")])) as (thread_id, run):
        with pytest.raises(InputError, match="at most 1,000,000 bytes; store what is larger"):
            await run.answer("x" * 1_000_001)
        with pytest.raises(InputError, match="an interrupt_id has at most 255 characters"):
            await run.answer("x", interrupt_id="i" * 256)
        await run.signal("x" * 1_000_001)

        async def counted() -> bool:
            return bool((await run.workflow.query("status"))["ignored_answers"] == 1)

        await eventually(counted)
        await run.answer("x" * 999_990)
        await run.result()
    assert results(await app.state(thread_id)) == ["999990"]


async def test_an_answer_is_checked_against_the_schema(app: App) -> None:
    def ask() -> str:
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        return str(interrupt("?", response_schema=schema))

    async with paused(app, agent([ask], [call("ask", "1")])) as (thread_id, run):
        with pytest.raises(InputError, match="does not fit: ok: 'yes' is not of type 'boolean'"):
            await run.answer({"ok": "yes"})
        with pytest.raises(InputError, match="no open interrupt has the id int_nope"):
            await run.answer({"ok": True}, interrupt_id="int_nope")
        await run.answer({"ok": True})
        await run.result()
    assert results(await app.state(thread_id)) == ["{'ok': True}"]


async def test_early_answers_and_answers_without_a_worker_are_kept(app: App) -> None:
    def ask() -> str:
        return str(interrupt("?"))

    thread_id = app.thread()
    run = await app.start("agent", thread_id)
    await run.workflow.signal("resume", {"value": "early"})
    async with app.worker(agent([ask], [call("ask", "1")])):
        await run.result()
    assert results(await app.state(thread_id)) == ["early"]


async def test_none_cancels(app: App) -> None:
    def ask() -> str:
        return "cancelled" if interrupt("?") is None else "answered"

    async with paused(app, agent([ask], [call("ask", "1")])) as (thread_id, run):
        await run.answer(None)
        await run.result()
    assert results(await app.state(thread_id)) == ["cancelled"]


async def test_interrupt_outside_a_run() -> None:
    with pytest.raises(RuntimeError, match="only while a node or a tool is running"):
        interrupt("?")


async def test_many_answers_at_once(app: App) -> None:
    def ask(n: int) -> str:
        return str(interrupt(n))

    calls = [call("ask", f"c{n}", n=n) for n in range(8)]
    async with paused(app, agent([ask], calls), 8) as (thread_id, run):
        ids = {ref.tool_call_id: ref.interrupt_id for ref in await run.interrupts()}
        signals = (
            run.workflow.signal("resume", {"interrupt_id": ids[f"c{n}"], "value": n * n}) for n in reversed(range(8))
        )
        await asyncio.gather(*signals)
        await run.result()
    assert results(await app.state(thread_id)) == [str(n * n) for n in range(8)]
