"""Threads from outside a run: forked at a version, edited with a check, deleted with their cache."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenxgraph_temporal import (
    AgentState,
    Command,
    Message,
    StateGraph,
    delete_thread,
    edit_thread,
    fork_thread,
    interrupt,
    thread_state,
)
from tenxgraph_temporal.runtime.errors import InputError, StaleStateError
from tenxgraph_temporal.runtime.storage.redis_cache import RedisCache

from ..support.app import App, eventually
from ..support.cli import cli
from ..support.graphs import StoryState, agent, call
from ..support.metrics import Counters


def said(state: AgentState) -> list[tuple[str, str]]:
    return [(message.role, message.text()) for message in state.context]


async def told(app: App, thread_id: str) -> list[str]:
    return [row.message_id for row in await app.store.list_messages(thread_id, None)]


def noting() -> tuple[Any, list[str]]:
    ran: list[str] = []

    def note(text: str, state: StoryState) -> str:
        ran.append(text)
        state.notes.append(text)
        return f"noted {text}"

    turns = [[call("note", "1", text="a"), call("note", "2", text="b")], [call("note", "1", text="c")]]
    return agent([note], *turns, state=StoryState), ran


async def test_a_fork_goes_on_by_itself(app: App) -> None:
    graph, ran = noting()
    thread_id, _ = await app.run(graph, config={"meta": {"trace": "x"}}, user_id="u")
    state = await app.state(thread_id, StoryState)
    fork_id = app.thread()
    made = await fork_thread(app.store, thread_id, fork_id)
    assert made.version == 1
    fork = await app.state(fork_id, StoryState)
    assert said(fork) == said(state)
    assert fork.notes == state.notes
    assert not {m.message_id for m in fork.context} & {m.message_id for m in state.context}
    assert await told(app, fork_id) == [m.message_id for m in fork.context]
    (info,) = [t for t in await app.store.list_threads() if t.thread_id == fork_id]
    assert (info.user_id, info.meta) == ("u", {"forked_from": {"thread_id": thread_id, "version": 6}})

    async with app.worker(graph):
        await (await app.start("agent", fork_id, "again", user_id="u")).result()
    assert len((await app.state(fork_id)).context) > len(state.context)
    assert said(await app.state(thread_id)) == said(state), "the old one stays as it is"
    assert sorted(ran) == sorted(["a", "b", "c"] * 2)


async def test_a_fork_in_the_middle_keeps_what_has_happened(app: App) -> None:
    """At the version before a tool step was committed: its recorded calls do not run again, the others do."""
    graph, ran = noting()
    thread_id, _ = await app.run(graph)
    versions = {v.origin.commit_id: v.version for v in await app.store.list_versions(thread_id, None) if v.origin}
    asked = versions["0/model/node"]
    before = await thread_state(app.store, thread_id, StoryState, version=asked)
    assert (before.notes, before.context[-1].tools_calls is not None) == ([], True)

    forks = [app.thread(), app.thread()]
    await fork_thread(app.store, thread_id, forks[0], version=asked)
    await app.store.pool.execute(
        f'DELETE FROM "{app.store.schema}".tool_executions WHERE thread_id = $1 AND tool_call_id LIKE $2',
        thread_id,
        f"{before.context[-1].message_id}:2",
    )
    await fork_thread(app.store, thread_id, forks[1], version=asked)
    ran.clear()
    async with app.worker(graph):
        for fork_id in forks:
            # a second start without input goes on from where the thread stands
            await (await app.start("agent", fork_id, [])).result()
            assert (await app.state(fork_id, StoryState)).notes == ["a", "b", "c"]
    assert sorted(ran) == ["b", "c", "c"]


async def test_a_fork_of_a_paused_thread_is_paused(app: App) -> None:
    def ask(state: StoryState) -> Command:
        return Command(update={"notes": [interrupt("really?")]})

    graph = StateGraph(StoryState, name="asks").add_node("ask", ask).set_entry_point("ask").compile()
    thread_id, fork_id = app.thread(), app.thread()
    async with app.worker(graph, max_cached_workflows=100):
        run = await app.start("asks", thread_id)
        await eventually(run.interrupts)
        await fork_thread(app.store, thread_id, fork_id)
        resumed = await app.graphs.start("asks", fork_id, resume="yes")
        await resumed.result()
        await run.answer("no")
        await run.result()
    assert (await app.state(fork_id, StoryState)).notes == ["yes"]
    assert (await app.state(thread_id, StoryState)).notes == ["no"]


async def test_what_cannot_be_forked(app: App) -> None:
    graph, _ = noting()
    thread_id, _ = await app.run(graph, user_id="u")
    taken, _ = await app.run(graph)
    with pytest.raises(InputError, match=f"there is a thread '{taken}' already"):
        await fork_thread(app.store, thread_id, taken)
    with pytest.raises(InputError, match="has no state of version 99"):
        await fork_thread(app.store, thread_id, app.thread(), version=99)
    for missing in (app.thread(), thread_id):
        with pytest.raises(InputError, match=f"thread '{missing}' has no state"):
            await fork_thread(app.store, missing, app.thread(), user_id="another")
    assert len((await app.state(taken)).context) == len((await app.state(thread_id)).context)


async def test_an_edit_is_the_next_version(app: App) -> None:
    graph, _ = noting()
    thread_id, state = await app.run(graph)
    head = await app.head(thread_id)
    reworded = state.context[0].model_copy(update={"content": Message.text_message("hello").content})
    context = [reworded.model_dump(), *(m.model_dump() for m in state.context[1:]), {"role": "user", "content": "new"}]
    done = await edit_thread(
        app.store, thread_id, {"notes": ["edited"], "context": context}, version=head.version, state=StoryState
    )
    assert done.version == head.version + 1
    edited = await app.state(thread_id, StoryState)
    assert edited.notes == ["edited"], "past the reducer"
    assert said(edited) == [("user", "hello"), *said(state)[1:], ("user", "new")]
    rows = await app.store.list_messages(thread_id, None)
    assert [row.message_id for row in rows] == [m.message_id for m in edited.context]
    assert rows[0].content[0]["text"] == "hello"
    async with app.worker(graph):
        await (await app.start("agent", thread_id, "go on")).result()
    assert (await app.state(thread_id, StoryState)).notes == ["edited", "a", "b", "c"]


async def test_a_field_that_the_reader_does_not_know_is_replaced_as_it_is(app: App) -> None:
    graph, _ = noting()
    thread_id, _ = await app.run(graph)
    version = (await app.head(thread_id)).version
    await edit_thread(app.store, thread_id, {"notes": ["raw"]}, version=version)
    assert (await app.state(thread_id, StoryState)).notes == ["raw"]


async def test_what_cannot_be_edited(app: App) -> None:
    graph, _ = noting()
    thread_id, state = await app.run(graph, user_id="u")
    version = (await app.head(thread_id)).version
    with pytest.raises(StaleStateError, match=f"expected version {version - 1}, found {version}"):
        await edit_thread(app.store, thread_id, {"notes": []}, version=version - 1)
    with pytest.raises(InputError, match=r"has no field note; its fields are blob, context, .*notes"):
        await edit_thread(app.store, thread_id, {"note": []}, version=version, state=StoryState)
    with pytest.raises(InputError, match="no field is given"):
        await edit_thread(app.store, thread_id, {}, version=version)
    with pytest.raises(InputError, match=r"does not fit: .*notes"):
        await edit_thread(app.store, thread_id, {"notes": 7}, version=version, state=StoryState)
    with pytest.raises(InputError, match=r"does not fit: .*context"):
        await edit_thread(app.store, thread_id, {"context": [{"role": "nobody"}]}, version=version)
    with pytest.raises(InputError, match="has no state"):
        await edit_thread(app.store, thread_id, {"notes": []}, version=version, user_id="another")
    _, elsewhere = await app.run(graph)
    context = [m.model_dump() for m in [*state.context, elsewhere.context[0]]]
    with pytest.raises(InputError, match="leave the ids of new messages out"):
        await edit_thread(app.store, thread_id, {"context": context}, version=version, user_id="u")
    assert (await app.head(thread_id)).version == version


async def test_an_edit_under_an_open_run_is_kept_and_ends_the_run(app: App) -> None:
    started = asyncio.Event()
    release = asyncio.Event()

    async def slow(state: StoryState) -> str:
        started.set()
        await release.wait()
        return "done"

    graph = StateGraph(StoryState, name="slow").add_node("slow", slow).set_entry_point("slow").compile()
    thread_id = app.thread()
    async with app.worker(graph):
        run = await app.start("slow", thread_id)
        await started.wait()
        await edit_thread(app.store, thread_id, {"blob": "edited"}, version=1, state=StoryState)
        release.set()
        with pytest.raises(Exception, match="STORAGE_CONFLICT_001"):
            await run.result()
    state = await app.state(thread_id, StoryState)
    assert (state.blob, len(state.context)) == ("edited", 1)


async def test_the_cache_is_cleared(app: App) -> None:
    graph, _ = noting()
    cache = RedisCache.open(app.stack.redis_url, metrics=Counters().metrics)
    thread_id = app.thread()

    async def cached() -> bool:
        return await cache.get(thread_id, "u") is not None

    async with app.worker(graph, shared_cache=cache):
        await (await app.start("agent", thread_id, user_id="u")).result()
        await eventually(cached)
        version = (await app.head(thread_id)).version
        await edit_thread(app.store, thread_id, {"context_summary": "x"}, version=version, cache=cache)
        assert not await cached()
        await (await app.start("agent", thread_id, user_id="u")).result()
        await eventually(cached)
    assert not await delete_thread(app.store, thread_id, user_id="another", cache=cache)
    assert await cached()
    assert await delete_thread(app.store, thread_id, user_id="u", cache=cache)
    assert not await cached()
    await cache.close()


async def test_the_same_by_command(app: App) -> None:
    graph, _ = noting()
    thread_id, _ = await app.run(graph)
    forked = await cli(app, "threads", "fork", thread_id, "the-fork", "--version", "2")
    assert forked.code == 0, forked
    assert "thread the-fork is a copy" in forked.out
    again = await cli(app, "threads", "fork", thread_id, "the-fork")
    assert again.code == 1, again
    edited = await cli(app, "threads", "edit", "the-fork", '{"notes": ["x"]}', "--version", "1", "--json")
    assert edited.json == {"thread_id": "the-fork", "version": 2}
    assert (await app.state("the-fork", StoryState)).notes == ["x"]
    stale = await cli(app, "threads", "edit", "the-fork", '{"notes": []}', "--version", "1")
    assert stale.code == 1, stale
    assert "STORAGE_CONFLICT_001" in stale.err
    wrong = await cli(app, "threads", "edit", "the-fork", "[]", "--version", "2")
    assert wrong.code == 2, wrong
