"""One database for 10xGraph and us: each goes on where the other stopped, on 10xGraph's own package.

Needs the package ``10xgraph``, and with it Python 3.12.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tenxgraph_temporal import AgentState, CompiledGraph, Message, StateGraph, interrupt
from tenxgraph_temporal.runtime.client import RunFailed, RunStopped
from tenxgraph_temporal.runtime.errors import SchemaError
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore
from tenxgraph_temporal.runtime.storage.redis_cache import RedisCache

from ..support.app import App, eventually
from ..support.graphs import agent, call
from ..support.metrics import Counters

tenxgraph = pytest.importorskip("tenxgraph", reason="10xgraph is not installed; it needs Python 3.12")

from injectq import InjectQ  # noqa: E402
from tenxgraph.core.graph import StateGraph as TheirGraph  # noqa: E402
from tenxgraph.core.graph import ToolNode as TheirTools  # noqa: E402
from tenxgraph.core.state import AgentState as TheirState  # noqa: E402
from tenxgraph.core.state import Message as TheirMessage  # noqa: E402
from tenxgraph.storage.checkpointer import PgCheckpointer  # noqa: E402
from tenxgraph.utils.interrupt import interrupt as their_interrupt  # noqa: E402

TURN = [call("lookup", "c1", order="4821"), call("refund", "c2", order="4821")]


class OurNotes(AgentState):
    notes: list[str] = []


class TheirNotes(TheirState):  # type: ignore[misc]
    notes: list[str] = []


@dataclass
class Theirs:
    """The graph as 10xGraph runs it: a model that asks for two tools, of which one may ask a person."""

    checkpointer: Any
    asks: bool = False
    ran: list[str] = field(default_factory=list)
    model: Callable[[Any], Any] | None = None

    def app(self) -> Any:
        def lookup(order: str) -> str:
            """Look an order up."""
            self.ran.append("lookup")
            return f"found {order}"

        def refund(order: str) -> str:
            """Refund an order."""
            self.ran.append("refund")
            return f"answer {their_interrupt({'order': order}, message='Refund?')}" if self.asks else "refunded"

        def model(state: Any) -> Any:
            if self.model is not None:
                self.model(state)
            if state.context[-1].role != "user":
                return TheirMessage.text_message("done", role="assistant")
            asks = TheirMessage.text_message("", role="assistant")
            asks.tools_calls = TURN
            return asks

        graph = TheirGraph(TheirNotes(), container=InjectQ())  # not the process-wide one
        graph.add_node("model", model)
        graph.add_node("tools", TheirTools([lookup, refund]))
        graph.set_entry_point("model")
        wants = {"tools": "tools", "__end__": "__end__"}
        graph.add_conditional_edges("model", lambda s: "tools" if s.context[-1].tools_calls else "__end__", wants)
        graph.add_edge("tools", "model")
        return graph.compile(checkpointer=self.checkpointer)

    async def run(self, thread_id: str, text: str | None = "hi", **given: Any) -> Any:
        if text is not None:
            given["messages"] = [TheirMessage.text_message(text)]
        return await self.app().ainvoke(given, {"thread_id": thread_id, "user_id": "u"})


@dataclass
class Ours:
    """The same graph, as we run it."""

    asks: bool = False
    ran: list[str] = field(default_factory=list)

    def graph(self) -> CompiledGraph:
        def lookup(order: str) -> str:
            self.ran.append("lookup")
            return f"found {order}"

        def refund(order: str, state: OurNotes) -> str:
            self.ran.append("refund")
            answer = f"answer {interrupt({'order': order}, message='Refund?')}" if self.asks else "refunded"
            state.notes = [*state.notes, answer]
            return answer

        return agent([lookup, refund], TURN, state=OurNotes)

    async def run(self, app: App, thread_id: str, text: Any = "hi", **options: Any) -> None:
        async with app.worker(self.graph(), shared_cache=options.pop("shared_cache", None)):
            await (await app.start("agent", thread_id, text, user_id="u", **options)).result()


@pytest.fixture
async def checkpointer(app: App) -> AsyncIterator[Any]:
    stack, schema = app.stack, app.store.schema
    made = PgCheckpointer(postgres_dsn=stack.postgres_dsn, redis_url=stack.redis_url, schema=schema)
    await made.asetup()
    yield made
    await made.arelease()


async def forget(checkpointer: Any, thread_id: str) -> None:
    """As after a day: the entry in its cache is gone."""
    await checkpointer.redis.delete(f"state_cache:{thread_id}:u")


async def conversation(app: App, thread_id: str) -> list[tuple[str, str]]:
    state = await app.state(thread_id, OurNotes)
    rows = await app.store.list_messages(thread_id, None)
    assert sorted(row.message_id for row in rows) == sorted(m.message_id for m in state.context)
    return [(m.role, m.text()) for m in state.context]


ONE_TURN = [
    ("user", "hi"),
    ("assistant", ""),
    ("tool", "found 4821"),
    ("tool", "refunded"),
    ("assistant", "done"),
]


async def test_turns_in_alternation(app: App, checkpointer: Any) -> None:
    thread_id = app.thread()
    theirs, ours = Theirs(checkpointer), Ours()
    for turn in range(4):
        if turn % 2:
            await ours.run(app, thread_id)
        else:
            await forget(checkpointer, thread_id)
            answer = await theirs.run(thread_id)
            assert [m.text() for m in answer["messages"]][-1] == "done"
        assert await conversation(app, thread_id) == ONE_TURN * (turn + 1)
        versions = [v.version for v in await app.store.list_versions(thread_id, "u")]
        assert versions == list(range(versions[0], versions[-1] - 1, -1))
    assert sorted(theirs.ran) == sorted(ours.ran) == ["lookup", "lookup", "refund", "refund"]
    assert (await app.state(thread_id, OurNotes)).notes == ["refunded"] * 2, "10xGraph keeps fields that we set"
    loaded = await checkpointer.aget_state({"thread_id": thread_id, "user_id": "u"})
    assert loaded.notes == ["refunded"] * 2


async def test_what_10xgraph_asked_is_answered_here(app: App, checkpointer: Any) -> None:
    """And the tool that it had finished does not run again: its ledger row is ours."""
    thread_id = app.thread()
    theirs, ours = Theirs(checkpointer, asks=True), Ours(asks=True)
    await theirs.run(thread_id)
    assert sorted(theirs.ran) == ["lookup", "refund"]
    await ours.run(app, thread_id, None, resume="yes")
    assert ours.ran == ["refund"]
    expected = [*ONE_TURN[:3], ("tool", "answer yes"), ONE_TURN[4]]
    assert await conversation(app, thread_id) == expected
    (record,) = [c for c in await app.store.calls(thread_id) if c.ledger_key.endswith(":c1")]
    assert record.replays == 1


async def test_what_we_asked_is_answered_in_10xgraph(app: App, checkpointer: Any) -> None:
    thread_id = app.thread()
    theirs, ours = Theirs(checkpointer, asks=True), Ours(asks=True)
    app.max_cached_workflows = 100
    async with app.worker(ours.graph()):
        run = await app.start("agent", thread_id, user_id="u")
        await eventually(run.interrupts)
        await run.workflow.terminate("goes on in 10xGraph")
    assert sorted(ours.ran) == ["lookup", "refund"]
    await theirs.run(thread_id, None, resume="no")
    assert theirs.ran == ["refund"]
    expected = [*ONE_TURN[:3], ("tool", "answer no"), ONE_TURN[4]]
    assert await conversation(app, thread_id) == expected


async def test_what_died_in_10xgraph_goes_on_here(app: App, checkpointer: Any) -> None:
    """Its process is gone in the middle of a tool step, after one of two results was recorded."""
    thread_id = app.thread()
    theirs, ours = Theirs(checkpointer, asks=True), Ours()
    await theirs.run(thread_id)
    # As if it had died instead of pausing: only the commit of the step before is there.
    await app.store.pool.execute(
        f'DELETE FROM "{app.store.schema}".states WHERE thread_id = $1 AND version = '
        f'(SELECT max(version) FROM "{app.store.schema}".states WHERE thread_id = $1)',
        thread_id,
    )
    await ours.run(app, thread_id, [])
    assert ours.ran == ["refund"]
    assert await conversation(app, thread_id) == ONE_TURN


async def test_errors_and_stops_are_gone_on_from(app: App, checkpointer: Any) -> None:
    def explode(state: Any) -> None:
        raise ValueError("the model is on fire")

    failed, stopped = app.thread(), app.thread()
    theirs, ours = Theirs(checkpointer), Ours()
    with pytest.raises(Exception, match="on fire"):
        await Theirs(checkpointer, model=explode).run(failed)
    assert (await app.state(failed)).execution_meta.status == "error"
    await ours.run(app, failed, [])
    assert await conversation(app, failed) == ONE_TURN

    waiting = Ours(asks=True)
    app.max_cached_workflows = 100
    async with app.worker(waiting.graph()):
        run = await app.start("agent", stopped, user_id="u")
        await eventually(run.interrupts)
        await run.stop()
        with pytest.raises(RunStopped):
            await run.result()
    await theirs.run(stopped, "and now?")
    assert (await conversation(app, stopped))[-1] == ("assistant", "done")
    assert ("user", "and now?") in await conversation(app, stopped)


async def test_a_stale_writer_loses_on_either_side(app: App, checkpointer: Any) -> None:
    thread_id = app.thread()
    theirs, ours = Theirs(checkpointer), Ours()
    await theirs.run(thread_id)

    # theirs has read, ours writes
    config = {"thread_id": thread_id, "user_id": "u"}
    state = await checkpointer.aget_state(config)
    await ours.run(app, thread_id)
    before = await app.head(thread_id)
    with pytest.raises(Exception, match="STORAGE_CONFLICT_001"):
        await checkpointer.aput_state(config, state)
    assert (await app.head(thread_id)).version == before.version

    # ours has read, theirs writes
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow(state: OurNotes) -> Message:
        entered.set()
        await release.wait()
        return Message.text_message("too late", role="assistant")

    graph = StateGraph(OurNotes, name="slow").add_node("model", slow).set_entry_point("model").compile()
    async with app.worker(graph):
        run = await app.start("slow", thread_id, user_id="u")
        await entered.wait()
        config = {"thread_id": thread_id, "user_id": "u"}
        state = await checkpointer.aget_state(config)
        await checkpointer.aput_state(config, state)
        release.set()
        with pytest.raises(RunFailed, match="STORAGE_CONFLICT_001"):
            await run.result()
    assert "too late" not in str(await conversation(app, thread_id))


async def test_its_cache_is_kept_up_to_date(app: App, checkpointer: Any) -> None:
    """10xGraph takes what its cache holds for the newest. With the same Redis, it is."""
    thread_id = app.thread()
    theirs, ours = Theirs(checkpointer), Ours()
    cache = RedisCache.open(app.stack.redis_url, metrics=Counters().metrics)
    await theirs.run(thread_id)
    await ours.run(app, thread_id, shared_cache=cache)
    await cache.close()
    await theirs.run(thread_id)
    assert await conversation(app, thread_id) == ONE_TURN * 3


async def test_without_the_same_redis_its_first_write_fails_and_it_heals(app: App, checkpointer: Any) -> None:
    thread_id = app.thread()
    theirs, ours = Theirs(checkpointer), Ours()
    await theirs.run(thread_id)
    await ours.run(app, thread_id)
    with pytest.raises(Exception, match="STORAGE_CONFLICT_001"):
        await theirs.run(thread_id)
    assert await conversation(app, thread_id) == ONE_TURN * 2, "nothing of the stale run is there"
    await theirs.run(thread_id)
    assert await conversation(app, thread_id) == ONE_TURN * 3


@pytest.mark.parametrize("order", ["theirs first", "ours first", "at once"])
async def test_either_sets_the_database_up(postgres_dsn: str, app: App, order: str) -> None:
    schema = f"both_{uuid.uuid4().hex[:8]}"
    await app.store.pool.execute(f'CREATE SCHEMA "{schema}"')
    store = await PostgresStore.open(postgres_dsn, schema=schema)
    theirs = PgCheckpointer(postgres_dsn=postgres_dsn, redis_url=app.stack.redis_url, schema=schema)
    if order == "at once":
        others = [await PostgresStore.open(postgres_dsn, schema=schema) for _ in range(4)]
        await asyncio.gather(theirs.asetup(), store.setup(), *(other.setup() for other in others))
        for other in others:
            await other.close()
    else:
        for setup in (theirs.asetup, store.setup) if order == "theirs first" else (store.setup, theirs.asetup):
            await setup()
    await theirs.asetup()
    await store.setup()
    await store.check()
    assert await store.pool.fetchval(f'SELECT max(version) FROM "{schema}".schema_version') == 3
    await theirs.arelease()
    await store.close()


async def test_a_database_of_theirs_alone_says_what_to_run(postgres_dsn: str, app: App) -> None:
    schema = f"theirs_{uuid.uuid4().hex[:8]}"
    await app.store.pool.execute(f'CREATE SCHEMA "{schema}"')
    theirs = PgCheckpointer(postgres_dsn=postgres_dsn, redis_url=app.stack.redis_url, schema=schema)
    await theirs.asetup()
    store = await PostgresStore.open(postgres_dsn, schema=schema)
    with pytest.raises(SchemaError, match="tenxgraph-temporal setup"):
        await store.check()
    await store.close()
    await theirs.arelease()


def test_messages_look_the_same() -> None:
    ours = Message.text_message("hi", role="user").model_dump(mode="json")
    theirs = json.loads(TheirMessage.text_message("hi", role="user").model_dump_json())
    assert ours.keys() == theirs.keys()
    assert ours["content"] == theirs["content"]
    assert AgentState().model_dump(mode="json").keys() <= json.loads(TheirState().model_dump_json()).keys()
