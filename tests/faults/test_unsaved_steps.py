"""``durable_checkpoint_every_step: False``: what is saved, what the caches carry, and what is lost with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from tenxgraph_temporal import AgentState, Command, CompiledGraph, StateGraph, interrupt
from tenxgraph_temporal.runtime.client import RunStopped
from tenxgraph_temporal.runtime.storage.redis_cache import RedisCache

from ..support.app import App, eventually
from ..support.graphs import StoryState, agent, call
from ..support.metrics import Counters
from ..support.world import World
from .test_worker_killed import STORY, TOOLS, normalised

FAST: dict[str, Any] = {"durable_checkpoint_every_step": False}


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
async def cache(app: App, counters: Counters) -> AsyncIterator[RedisCache]:
    opened = RedisCache.open(app.stack.redis_url, metrics=counters.metrics)
    yield opened
    await opened.close()


async def saved(app: App, thread_id: str) -> list[str]:
    """The commits that have a row, oldest first."""
    versions = await app.store.list_versions(thread_id, None)
    return [v.origin.commit_id for v in reversed(versions) if v.origin]


async def counted(cache: RedisCache, thread_id: str, at_least: int) -> None:
    """Wait until a run of ``counter`` has come so far, by what the cache holds of it."""

    async def there() -> bool:
        snapshot = await cache.get(thread_id, "anonymous")
        return snapshot is not None and snapshot.decode(Counted).count >= at_least

    await eventually(there)


async def test_only_the_ends_are_saved(app: App, cache: RedisCache) -> None:
    def note(text: str, state: StoryState) -> str:
        state.notes.append(text)
        return text

    graph = agent([note], *[[call("note", "1", text="a"), call("note", "2", text="b")]] * 3, state=StoryState)
    ended = []
    for config in ({}, FAST):
        thread_id = app.thread()
        async with app.worker(graph, shared_cache=cache):
            await (await app.start("agent", thread_id, config=config)).result()
            first = await saved(app, thread_id)
            await (await app.start("agent", thread_id, "and again", config=config)).result()
        state = await app.state(thread_id, StoryState)
        assert [row.message_id for row in await app.store.list_messages(thread_id, None)] == [
            m.message_id for m in state.context
        ]
        versions = [v.version for v in await app.store.list_versions(thread_id, None)]
        assert versions == list(range(len(versions), 0, -1)), "dense"
        ended.append((normalised(state), first, {c.status for c in await app.store.calls(thread_id)}))
    (always, all_commits, recorded), (fast, ends, also_recorded) = ended
    assert fast == always
    assert recorded == also_recorded == {"finished"}
    assert len(all_commits) > 6
    assert ends == [all_commits[0], all_commits[-1]]


async def test_without_a_cache_every_step_is_saved(app: App, caplog: pytest.LogCaptureFixture) -> None:
    graph = agent([lambda_tool], [call("lambda_tool", "1")])
    thread_id, _ = await app.run(graph, config=FAST)
    assert len(await saved(app, thread_id)) == 4
    assert "has no TENXGRAPH_REDIS_URL to keep unsaved steps in" in caplog.text


async def test_where_the_cache_is_down_every_step_is_saved(app: App, counters: Counters) -> None:
    cache = RedisCache.open("redis://127.0.0.1:9/0", metrics=counters.metrics)
    graph = agent([lambda_tool], [call("lambda_tool", "1")])
    thread_id = app.thread()
    async with app.worker(graph, shared_cache=cache):
        await (await app.start("agent", thread_id, config=FAST)).result()
    await cache.close()
    assert len(await saved(app, thread_id)) == 4
    assert counters["tenxgraph.cache.faults"]


def lambda_tool() -> str:
    return "done"


async def test_a_worker_that_takes_over_goes_on_from_the_cache(app: App, world: World) -> None:
    env = {"OUTSIDE_WORLD": world.address, "TENXGRAPH_REDIS_URL": app.stack.redis_url}
    thread_id = app.thread()
    await world.hold("charge")
    async with app.process(STORY, **env) as first:
        run = await app.start("story", thread_id, config=FAST)
        await world.until("charge")

        async def others_are_recorded() -> bool:
            return len(await app.store.calls(thread_id)) == 2

        await eventually(others_are_recorded)
        await first.kill()
    await world.release("charge")
    async with app.process(STORY, **env):
        await run.result()
    state = await app.state(thread_id, StoryState)
    assert [m.role for m in state.context] == ["user", "assistant", "tool", "tool", "tool", "assistant"]
    counts = await world.counts()
    assert (counts["lookup"], counts["receipt"]) == (1, 1), "the message that asked was in the cache, and its ids too"
    assert counts["charge"] == 2, "it had no record yet"
    assert len(await app.store.calls(thread_id)) == len(TOOLS)
    assert len(await saved(app, thread_id)) == 2


async def test_what_the_cache_lost_is_done_again(app: App, world: World) -> None:
    """The documented risk: back to the last saved step, and saved from then on."""
    env = {"OUTSIDE_WORLD": world.address, "TENXGRAPH_REDIS_URL": app.stack.redis_url}
    thread_id = app.thread()
    await world.hold("charge")
    async with app.process(STORY, **env) as first:
        run = await app.start("story", thread_id, config=FAST)
        await world.until("charge")
        await first.kill()
    async with Redis.from_url(app.stack.redis_url) as redis:
        await redis.delete(f"state_cache:{thread_id}:anonymous")
    await world.release("charge")
    async with app.process(STORY, **env):
        await run.result()
    state = await app.state(thread_id, StoryState)
    assert [m.role for m in state.context] == ["user", "assistant", "tool", "tool", "tool", "assistant"]
    assert state.notes == ["charged", "receipt sent"]
    assert (await world.counts())["charge"] == 2
    assert len(await saved(app, thread_id)) == 4, "begin, and every step since the loss"


class Counted(AgentState):
    count: int = 0


def counter(to: int, pause: float = 0.0, ask_at: int = -1) -> CompiledGraph:
    async def again(state: Counted) -> Command:
        await asyncio.sleep(pause)
        if state.count == ask_at:
            interrupt("go on?")
        return Command(update={"count": state.count + 1}, goto="again" if state.count + 1 < to else "__end__")

    return StateGraph(Counted, name="counter").add_node("again", again).set_entry_point("again").compile()


twenty = counter(20, 0.02)
HERE = "tenxgraph_temporal.tests.faults.test_unsaved_steps:twenty"


async def test_many_workers_and_a_cache_that_forgets_everything(app: App) -> None:
    """Whoever finds the entry gone goes back once, then saves; the run comes to its end."""
    thread_id = app.thread()
    env = {"TENXGRAPH_REDIS_URL": app.stack.redis_url}
    async with app.process(HERE, **env), app.process(HERE, **env), Redis.from_url(app.stack.redis_url) as redis:
        run = await app.start("counter", thread_id, config=FAST)
        ended = asyncio.create_task(run.result())
        while not ended.done():
            await redis.delete(f"state_cache:{thread_id}:anonymous")
            await asyncio.sleep(0.002)
        await ended
    assert (await app.state(thread_id, Counted)).count == 20


async def test_a_stop_and_a_pause_save_where_they_are(app: App, cache: RedisCache) -> None:
    graph, stopped, paused = counter(1000, 0.02, ask_at=12), app.thread(), app.thread()
    async with app.worker(graph, shared_cache=cache, max_cached_workflows=100):
        config = {**FAST, "recursion_limit": 1000}
        run = await app.start("counter", stopped, config=config)
        waits = await app.start("counter", paused, config=config)
        await counted(cache, stopped, 3)
        assert len(await saved(app, stopped)) == 1
        await run.stop()
        with pytest.raises(RunStopped):
            await run.result()
        assert len(await saved(app, stopped)) == 2
        assert 0 < (await app.state(stopped, Counted)).count <= 12

        async def asked() -> Any:
            return await waits.interrupts()

        await eventually(asked)
        assert (await app.state(paused, Counted)).count == 12
        assert len(await saved(app, paused)) == 2
        await waits.answer("yes")
        await counted(cache, paused, 14)
        await waits.stop()
        with pytest.raises(RunStopped):
            await waits.result()
    assert (await app.state(paused, Counted)).count > 13
    assert [c.split("/")[-1] for c in await saved(app, paused)][-1] == "close"


async def test_a_terminated_runs_steps_are_found_by_the_next(app: App, cache: RedisCache) -> None:
    graph, thread_id = counter(1000, 0.02), app.thread()
    async with app.worker(graph, shared_cache=cache):
        config = {**FAST, "recursion_limit": 1000}
        run = await app.start("counter", thread_id, config=config)
        await counted(cache, thread_id, 6)
        await run.workflow.terminate("a test")
        before = (await app.state(thread_id, Counted)).count
        assert before == 0, "nothing but the begin is saved"
        nxt = await app.start("counter", thread_id, "go on", config={"recursion_limit": 1000})

        async def further() -> bool:
            return (await app.state(thread_id, Counted)).count > 0

        await eventually(further)
        first = (await app.state(thread_id, Counted)).count
        await nxt.stop()
        with pytest.raises(RunStopped):
            await nxt.result()
    assert first > 5, "it went on from the cache"
    rows = [row.message_id for row in await app.store.list_messages(thread_id, None)]
    assert rows == [m.message_id for m in (await app.state(thread_id)).context]


async def test_an_unsaved_run_loses_to_another_writer(app: App, cache: RedisCache) -> None:
    """It finds out when it saves, and writes nothing over the other's work."""
    graph, thread_id = counter(30, 0.02), app.thread()
    async with app.worker(graph, shared_cache=cache):
        run = await app.start("counter", thread_id, config={**FAST, "recursion_limit": 100})
        await counted(cache, thread_id, 3)
        async with app.store.pool.acquire() as connection:
            await connection.execute(
                f'INSERT INTO "{app.store.schema}".states (thread_id, version, state_data) '
                f'SELECT thread_id, version + 1, state_data FROM "{app.store.schema}".states WHERE thread_id = $1',
                thread_id,
            )
        with pytest.raises(Exception, match="STORAGE_CONFLICT_001"):
            await run.result()
    assert len(await app.store.list_versions(thread_id, None)) == 2
