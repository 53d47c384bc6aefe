"""Runs that outlive their history, and a database that goes away under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus

from tenxgraph_temporal import END, AgentState, Command, CompiledGraph, StateGraph, ToolContext, WirePlugin, interrupt
from tenxgraph_temporal.runtime.client import RunStopped
from tenxgraph_temporal.runtime.devstack import DevStack, dev_stack, skip_time
from tenxgraph_temporal.runtime.interrupt import InterruptRequest, open_requests
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore
from tenxgraph_temporal.runtime.tools.identity import idempotency_key

from ..support.app import App, eventually, replay
from ..support.graphs import agent, call
from ..support.world import World, do

SUGGEST_EARLY = ["--dynamic-config-value", "limit.historyCount.suggestContinueAsNew=50"]
FAST = ["--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000"]


DAY = 86_400.0


class Counted(AgentState):
    count: int = 0


def counter(to: int, pause: float = 0.0) -> CompiledGraph:
    async def again(state: Counted) -> Command:
        if pause:
            await asyncio.sleep(pause)
        if state.count >= to:
            return Command(goto="last")
        return Command(update={"count": state.count + 1}, goto="again")

    builder = StateGraph(Counted, name="counter")
    builder.add_node("again", again).add_node("last", lambda state: "done")
    return builder.set_entry_point("again").add_edge("last", "__end__").compile()


@pytest.fixture
async def forgetful(store: PostgresStore, tmp_path: Path) -> AsyncIterator[App]:
    """An app on a Temporal that asks for a roll-over after 50 events."""
    async with dev_stack(postgres=False, redis=False, temporal_args=SUGGEST_EARLY) as stack:
        client = await Client.connect(stack.temporal_address, plugins=[WirePlugin()])
        yield App(stack=stack, client=client, store=store, logs=tmp_path)


async def asked(app: App, thread_id: str) -> list[InterruptRequest]:
    """The open questions, from the thread: a query each few milliseconds trips the SDK, which is not the point here."""
    head = await app.store.load_head(thread_id, None)
    return open_requests(await app.state(thread_id)) if head is not None else []


async def executions(app: App, thread_id: str) -> list[Any]:
    return [e async for e in app.client.list_workflows(f'WorkflowId = "thread-{thread_id}"')]


async def until_counted(app: App, thread_id: str, count: int) -> None:
    async def there() -> bool:
        if await app.store.load_head(thread_id, None) is None:
            return False
        return (await app.state(thread_id, Counted)).count >= count

    await eventually(there, timeout=60)


async def test_three_hundred_steps_over_many_histories(forgetful: App) -> None:
    app, thread_id = forgetful, forgetful.thread()
    async with app.worker(counter(300), max_cached_workflows=100):
        started = time.monotonic()
        run = await app.start("counter", thread_id, config={"recursion_limit": 400})
        first = run.workflow.first_execution_run_id
        await run.result()
        print("seconds", time.monotonic() - started)
    state = await app.state(thread_id, Counted)
    assert state.count == 300
    assert state.execution_meta.status == "completed"
    history = await app.client.get_workflow_handle(run.workflow.id, run_id=first).fetch_history()
    assert history.events[-1].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
    assert len(history.events) < 120
    last = await app.client.get_workflow_handle(run.workflow.id).fetch_history()
    await replay(history, last)
    listed = await executions(app, thread_id)
    assert len(listed) > 10


async def test_a_stop_is_not_lost_in_a_roll_over(forgetful: App) -> None:
    """Ten runs that roll over every few steps, stopped at whatever moment comes."""
    app = forgetful
    threads = [app.thread() for _ in range(20)]
    async with app.worker(counter(100_000), max_cached_workflows=100):
        runs = [await app.start("counter", t, config={"recursion_limit": 1_000_000}) for t in threads]

        for thread_id in threads:
            await until_counted(app, thread_id, 4)
        for index, run in enumerate(runs):
            await asyncio.sleep(0.037 * (index % 4))
            # as the CLI and the UI do: whichever execution is the current one
            await app.client.get_workflow_handle(run.workflow.id).cancel()
        for run in runs:
            with pytest.raises(RunStopped):
                await asyncio.wait_for(app.graphs.handle(run.thread_id).result(), 30)
            described = await app.client.get_workflow_handle(run.workflow.id).describe()
            assert described.status == WorkflowExecutionStatus.CANCELED
            state = await app.state(run.thread_id, Counted)
            assert state.execution_meta.status == "interrupted_after"
            assert state.count > 3
        stopped = [(await app.state(t, Counted)).count for t in threads]
        await asyncio.sleep(0.5)
        assert [(await app.state(t, Counted)).count for t in threads] == stopped


async def test_the_handle_of_the_start_stops_a_run_that_rolled_over(forgetful: App) -> None:
    app, thread_id = forgetful, forgetful.thread()
    async with app.worker(counter(100_000), max_cached_workflows=100):
        run = await app.start("counter", thread_id, config={"recursion_limit": 1_000_000})
        await until_counted(app, thread_id, 51)
        await run.stop()
        with pytest.raises(RunStopped):
            await asyncio.wait_for(run.result(), 30)


async def test_questions_outlive_their_histories(forgetful: App) -> None:
    """Forty questions, answered by signals and updates the moment the thread shows them: paused or rolling over."""

    def ask(state: Counted) -> Command:
        answer = interrupt(state.count)
        if answer != state.count:
            raise ValueError(f"{answer} is the answer to another question than {state.count}")
        return Command(update={"count": state.count + 1}, goto="ask" if state.count < 39 else "__end__")

    graph = StateGraph(Counted, name="ask").add_node("ask", ask).set_entry_point("ask").compile()
    app, thread_id = forgetful, forgetful.thread()
    async with app.worker(graph, max_cached_workflows=100):
        run = await app.start("ask", thread_id, config={"recursion_limit": 100})
        first = run.workflow.first_execution_run_id
        current = app.graphs.handle(thread_id)
        seen: set[str] = set()
        for number in range(40):

            async def unseen() -> list[str]:
                return [request.id for request in await asked(app, thread_id) if request.id not in seen]

            (interrupt_id,) = await eventually(unseen)
            seen.add(interrupt_id)
            await (current.answer if number % 2 else current.signal)(number, interrupt_id=interrupt_id)
        await asyncio.wait_for(run.result(), 60)
    assert (await app.state(thread_id, Counted)).count == 40
    listed = await executions(app, thread_id)
    assert len(listed) > 5, "it rolled over"
    for execution in listed:
        await replay(await app.client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history())
    assert first in {execution.run_id for execution in listed}


async def test_a_deadline_outlives_histories(forgetful: App) -> None:
    """One call asks each day, one waits for ten days; nobody answers, and the run rolls over beneath them."""
    expired: list[str] = []

    def daily() -> str:
        for number in range(15):
            interrupt(number, timeout=DAY, on_timeout=None)
            expired.append(f"day {number + 1}")
        return "daily"

    def patient() -> str:
        interrupt("?", timeout=9.5 * DAY, on_timeout=None)
        expired.append("patient")
        return "patient"

    graph = agent([daily, patient], [call("daily", "1"), call("patient", "2")])
    app, thread_id = forgetful, forgetful.thread()
    async with app.worker(graph, max_cached_workflows=100):
        run = await app.start("agent", thread_id)

        async def both_wait() -> bool:
            return len(await asked(app, thread_id)) == 2

        await eventually(both_wait)
        await skip_time(app.client, run.workflow)
        await asyncio.wait_for(run.result(), 60)
    # The server now and then skips too much before the first task of a rolled-over run, but never too little.
    assert expired.index("patient") < expired.index("day 11")
    listed = await executions(app, thread_id)
    assert len(listed) > 2, "it rolled over"
    for execution in listed:
        await replay(await app.client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history())


async def test_a_nodes_deadline_goes_on_in_the_next_history(forgetful: App) -> None:
    graph = StateGraph(name="asks").add_node("ask", lambda state: str(interrupt("?", timeout=DAY, on_timeout="nobody")))
    app, thread_id = forgetful, forgetful.thread()
    async with app.worker(graph.set_entry_point("ask").add_edge("ask", END).compile(), max_cached_workflows=100):
        run = await app.start("asks", thread_id)
        await eventually(lambda: asked(app, thread_id))
        await asyncio.sleep(1.5)
        while len(await executions(app, thread_id)) < 2:
            await app.graphs.handle(thread_id).workflow.signal("resume", "nonsense")
        current = app.graphs.handle(thread_id)

        async def timers() -> list[timedelta]:
            events = (await current.workflow.fetch_history()).events
            return [
                event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
                for event in events
                if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED
            ]

        (left,) = await eventually(timers)
        assert left < timedelta(seconds=DAY - 1)
        await skip_time(app.client, current.workflow)
        await run.result()
    assert (await app.state(thread_id)).context[-1].text() == "nobody"


async def test_a_flood_of_answers_that_fit_nothing_does_not_stop_a_roll_over(forgetful: App) -> None:
    graph = StateGraph(name="asks").add_node("ask", lambda state: str(interrupt("?")))
    app, thread_id = forgetful, forgetful.thread()
    async with app.worker(graph.set_entry_point("ask").add_edge("ask", END).compile(), max_cached_workflows=100):
        run = await app.start("asks", thread_id)
        (asking,) = await eventually(lambda: asked(app, thread_id))
        current, number = app.graphs.handle(thread_id), 0
        while len(await executions(app, thread_id)) < 2:
            await current.signal("x" * 300_000, interrupt_id=f"int_{number}")
            number += 1
        await current.signal("the answer", interrupt_id=asking.id)
        await run.result()
    assert number > 4  # more than fits into a new history
    assert (await app.state(thread_id)).context[-1].text() == "the answer"


async def test_parallel_questions_outlive_their_histories(forgetful: App) -> None:
    """Three calls that ask again and again while the run rolls over beneath them; a finished one never runs again."""
    ran: list[str] = []

    def confirm(name: str) -> str:
        ran.append(name)
        return "".join(interrupt(n) for n in range(12))

    def once() -> str:
        ran.append("once")
        return "done"

    names = ("a", "b", "c")
    graph = agent([confirm, once], [*(call("confirm", name, name=name) for name in names), call("once", "d")])
    app, thread_id = forgetful, forgetful.thread()
    async with app.worker(graph, max_cached_workflows=100):
        run = await app.start("agent", thread_id)
        current = app.graphs.handle(thread_id)
        answered: set[str] = set()
        while len(answered) < 36:
            for request in await asked(app, thread_id):
                if request.id not in answered:
                    answered.add(request.id)
                    send = current.answer if len(answered) % 2 else current.signal
                    await send(request.tool_call_id, interrupt_id=request.id)
            await asyncio.sleep(0.1)  # long enough for all to wait at once, now and then
        await asyncio.wait_for(run.result(), 60)
    state = await app.state(thread_id)
    assert [m.text() for m in state.context if m.role == "tool"] == [*(name * 12 for name in names), "done"]
    assert ran.count("once") == 1
    listed = await executions(app, thread_id)
    assert len(listed) > 2, "it rolled over"
    for execution in listed:
        await replay(await app.client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history())


async def test_the_database_restarts_under_load(world: World, tmp_path: Path) -> None:
    """All runs finish, and a call whose result was recorded never runs again."""

    async def act(context: ToolContext) -> str:
        await asyncio.to_thread(do, world.address, "act", key=context.idempotency_key)
        return "done"

    turn = [call("act", "1"), call("act", "2")]
    graph = agent([act], *[turn] * 6, name="load")
    async with dev_stack(redis=False, temporal_args=FAST) as stack:
        client = await Client.connect(stack.temporal_address, plugins=[WirePlugin()])
        store = await PostgresStore.open(stack.postgres_dsn, schema="load", pool_size=10)
        await store.setup()
        app = App(stack=stack, client=client, store=store, logs=tmp_path)
        try:
            await under_load(app, stack, world, graph)
        finally:
            await store.close()


async def under_load(app: App, stack: DevStack, world: World, graph: CompiledGraph) -> None:
    threads = [app.thread() for _ in range(20)]
    async with app.worker(graph, max_cached_workflows=100):
        runs = [await app.start("load", t, config={"recursion_limit": 50}) for t in threads]
        for down in (0.5, 3.0):
            await asyncio.sleep(0.4)
            await stack.postgres.stop()
            await asyncio.sleep(down)
            await stack.postgres.start()
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 120)
    recorded = {}
    for thread_id in threads:
        state = await app.state(thread_id)
        assert state.execution_meta.status == "completed"
        assert len([m for m in state.context if m.role == "tool"]) == 12
        calls = await app.store.calls(thread_id)
        assert len(calls) == 12
        assert {c.status for c in calls} == {"finished"}
        for record in calls:
            message_id, _, call_id = record.ledger_key.partition(":")
            recorded[idempotency_key(thread_id, message_id, call_id)] = record.at.timestamp()
    done = [(entry["body"]["key"], entry["at"]) for entry in await world.log() if entry["action"] == "act"]
    assert {key for key, _ in done} == set(recorded)
    # the one window is between effect and record
    late = [key for key, at in done if at > recorded[key] + 0.05]
    assert not late, late
    print("effects", len(done), "of", len(recorded))


async def test_two_thousand_steps_in_flat_memory(app: App) -> None:
    """Rolled over when Temporal itself suggests it; neither worker nor server grows with the run."""
    thread_id = app.thread()
    worker = psutil.Process()
    async with app.worker(counter(1999), max_cached_workflows=100):
        run = await app.start("counter", thread_id, config={"recursion_limit": 5000})

        async def at_step(number: int) -> bool:
            return bool((await run.workflow.query("status"))["step"] >= number)

        await eventually(lambda: at_step(300), timeout=120)
        early = worker.memory_info().rss
        await asyncio.wait_for(run.result(), 150)
        grown = worker.memory_info().rss - early
    state = await app.state(thread_id, Counted)
    assert (state.count, state.execution_meta.status) == (1999, "completed")
    runs = [found async for found in app.client.list_workflows(f'WorkflowId = "thread-{thread_id}"')]
    assert len(runs) >= 2, runs
    assert grown < 40_000_000, f"{grown} bytes between step 300 and the end"
