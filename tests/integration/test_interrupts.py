"""People in the loop: pausing, answering, expiring, approving."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tenxgraph_temporal import AgentState, InterruptExpired, OnTimeout, RunHandle, StateGraph, interrupt, tool
from tenxgraph_temporal.runtime.client import RunFailed
from tenxgraph_temporal.runtime.errors import InputError

from ..support.app import App, eventually
from ..support.graphs import agent, call, results
from ..support.pausing import paused, until_paused

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


async def test_time_that_is_up_already(app: App) -> None:
    def ask() -> str:
        return str(interrupt("?", timeout=timedelta(seconds=-5), on_timeout="the default"))

    _, state = await app.run(agent([ask], [call("ask", "1")]))
    assert results(state) == ["the default"]


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


async def test_what_happens_when_nobody_answers(app: App) -> None:
    def default() -> str:
        return str(interrupt("?", timeout=0.2, on_timeout="the default"))

    def error() -> str:
        return str(interrupt("?", timeout=0.2))

    def caught() -> str:
        try:
            return str(interrupt("?", timeout=0.2))
        except InterruptExpired:
            return "went on"

    calls = [call("default", "1"), call("error", "2"), call("caught", "3")]
    _, state = await app.run(agent([default, error, caught], calls))
    first, second, third = results(state)
    assert first == "the default"
    assert "InterruptExpired" in second
    assert third == "went on"


async def test_a_run_may_fail_when_nobody_answers(app: App) -> None:
    def ask() -> str:
        return str(interrupt("?", timeout=0.2, on_timeout=OnTimeout.FAIL))

    def waits_for_ever() -> str:
        return str(interrupt("?"))

    thread_id = app.thread()
    async with app.worker(agent([ask, waits_for_ever], [call("ask", "1"), call("waits_for_ever", "2")])):
        with pytest.raises(RunFailed, match="nobody answered") as failure:
            await (await app.start("agent", thread_id)).result()
    assert failure.value.code == "INTERRUPT_TIMEOUT"
    assert (await app.state(thread_id)).execution_meta.status == "error"


async def test_a_run_that_fails_while_somebody_is_asked_says_why(app: App, execution: str) -> None:
    """Not that nobody answered the one who is asked, who is not told either that an answer was accepted."""
    may_end = asyncio.Event()

    def ask() -> str:
        return str(interrupt("?"))

    async def slow() -> str:
        await may_end.wait()
        return "slow"

    def ask_in_vain() -> str:
        return str(interrupt("?", timeout=1, on_timeout=OnTimeout.FAIL))

    turn = [call("ask", "1"), call("slow", "2"), call("ask_in_vain", "3")]
    thread_id = app.thread()
    async with app.worker(agent([ask, slow, ask_in_vain], turn)):
        run = await app.start("agent", thread_id)
        if execution != "activity":  # which asks when all its calls have been made
            may_end.set()
        await until_paused(run, 2)
        (asked,) = [ref for ref in await run.interrupts() if ref.tool_call_id == "1"]
        if execution == "activity":
            await until_paused(run, 0)
            with pytest.raises(InputError, match="answered already, or its time is up"):
                await run.answer("late", interrupt_id=asked.interrupt_id)
        may_end.set()
        with pytest.raises(RunFailed, match=r"nobody answered interrupt int_\w+ \(tool:3:0\) within"):
            await run.result()


@pytest.mark.parametrize(
    ("answer", "expected", "ran_with"),
    [
        ({"approved": True, "by": "ada"}, "deleted /a", ["/a"]),
        ({"approved": True, "arguments": {"path": "/b"}}, "deleted /b", ["/b"]),
        ({"approved": False, "reason": "too risky"}, "rejected the call: too risky", []),
        (None, "rejected the call", []),
    ],
)
async def test_approval_without_code(app: App, answer: Any, expected: str, ran_with: list[str]) -> None:
    ran: list[str] = []

    @tool(requires_approval=lambda arguments: arguments["path"] != "/tmp")
    def delete(path: str) -> str:
        ran.append(path)
        return f"deleted {path}"

    graph = agent([delete], [call("delete", "1", path="/a"), call("delete", "2", path="/tmp")])
    async with paused(app, graph) as (thread_id, run):
        meta = (await app.state(thread_id)).execution_meta
        assert meta.interrupt_data is not None
        assert meta.interrupt_data["interrupt"]["value"] == {
            "tool": "delete",
            "arguments": {"path": "/a"},
            "tool_call_id": "1",
        }
        await run.answer(answer)
        await run.result()
    assert sorted(ran) == sorted([*ran_with, "/tmp"])
    state = await app.state(thread_id)
    assert expected in results(state)[0]
    record = next(c for c in await app.store.calls(thread_id) if c.ledger_key.endswith(":1"))
    assert record.envelope is not None
    audit = record.envelope["value"]["metadata"]["approval"]
    assert audit["approved"] is bool(ran_with)
    assert audit["by"] == (answer or {}).get("by", "")


async def test_a_remote_tool_is_carried_out_by_the_client(app: App) -> None:
    @tool(remote=True)
    def pick_file(title: str) -> str:
        """Let the user pick a file."""
        raise AssertionError("runs on the client")

    async with paused(app, agent([pick_file], [call("pick_file", "1", title="CV")])) as (thread_id, run):
        meta = (await app.state(thread_id)).execution_meta
        assert meta.interrupt_data is not None
        assert meta.interrupt_data["interrupt"]["reason"] == "remote_tool_call"
        assert meta.interrupt_data["interrupt"]["value"]["arguments"] == {"title": "CV"}
        await run.answer({"file": "cv.pdf"})
        await run.result()
    assert results(await app.state(thread_id)) == ['{"file":"cv.pdf"}']


@pytest.mark.parametrize("when", ["before", "after"])
async def test_pauses_at_nodes(app: App, when: str) -> None:
    visits: list[str] = []
    builder = StateGraph(name="g")
    for name in ("a", "b"):
        builder.add_node(name, lambda state, name=name: visits.append(name))
    builder.set_entry_point("a").add_edge("a", "b")
    graph = builder.compile(**{f"interrupt_{when}": ["b" if when == "before" else "a"]})  # type: ignore[arg-type]
    async with paused(app, graph) as (thread_id, run):
        assert visits == ["a"]
        meta = (await app.state(thread_id)).execution_meta
        assert meta.status == f"interrupted_{when}"
        assert meta.current_node == "b"
        await run.workflow.signal("resume", {"value": None})
        await run.result()
    assert visits == ["a", "b"]


async def test_pauses_per_run(app: App) -> None:
    graph = agent([], answer="hello")
    async with paused(app, graph, config={"interrupt_before": ["model"]}) as (thread_id, run):
        await run.answer(None)
        await run.result()
    assert (await app.state(thread_id)).context[-1].text() == "hello"


@pytest.mark.parametrize("wrong", ["model", ["modle"], ["model", 5], {"model": True}])
async def test_a_pause_that_cannot_be_made_is_refused(app: App, wrong: Any) -> None:
    """Where somebody wants to look first, going on all the same is the worst there is."""
    thread_id = app.thread()
    async with app.worker(agent([])):
        run = await app.start("agent", thread_id, config={"interrupt_before": wrong})
        with pytest.raises(RunFailed, match=r"is not a list of nodes of graph 'agent' \(model, tools\)") as failure:
            await run.result()
    assert failure.value.code == "GRAPH_003"


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
