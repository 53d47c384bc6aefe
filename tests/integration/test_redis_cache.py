"""The cache of states on a real Valkey: what it keeps, and that nothing it does or fails to do changes an answer."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from tenxgraph_temporal import AgentState, Message
from tenxgraph_temporal.runtime.devstack import DevStack, dev_stack
from tenxgraph_temporal.runtime.errors import SettingsError
from tenxgraph_temporal.runtime.state.encoding import dump_json
from tenxgraph_temporal.runtime.storage.contract import Origin
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore
from tenxgraph_temporal.runtime.storage.redis_cache import DEADLINE, RedisCache
from tenxgraph_temporal.runtime.storage.snapshot import Snapshot, StateCache
from tenxgraph_temporal.runtime.storage.thread_states import ThreadStates
from tenxgraph_temporal.runtime.wire import Position, RunRef

from ..support.app import App
from ..support.graphs import agent, call
from ..support.metrics import Counters

ORIGIN = Origin(run_id="r", commit_id="1/model/node", position={"step": 1}, config={"meta": {"a": 1}})


def snapshot(version: int = 3, **changes: Any) -> Snapshot:
    fields = {"context": dump_json([]), "notes": dump_json(["å", ""]), "__state_meta__": b'{"format":1}'}
    known = Snapshot(version=version, state_id=70 + version, row="r/1/model/node", fields=fields, origin=ORIGIN)
    return replace(known, **changes)


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
async def redis(stack: DevStack) -> AsyncIterator[Redis]:
    async with Redis.from_url(stack.redis_url) as client:
        yield client


@pytest.fixture
async def cache(stack: DevStack, counters: Counters) -> AsyncIterator[RedisCache]:
    opened = RedisCache.open(stack.redis_url, metrics=counters.metrics, deadline=5)  # a busy machine is no miss
    yield opened
    await opened.close()


@pytest.fixture
def thread(app: App) -> str:
    return app.thread()


async def test_what_was_put_comes_back(cache: RedisCache, thread: str) -> None:
    for kept in (snapshot(3), snapshot(3, unsaved=2, unsaved_messages=frozenset({"m1", "m2"})), snapshot(4)):
        assert await cache.put(thread, "u", kept)
        assert await cache.get(thread, "u") == kept
    assert await cache.get(thread, "another user") is None
    await cache.drop(thread, "u")
    assert await cache.get(thread, "u") is None


async def test_an_entry_is_one_of_10xgraphs(cache: RedisCache, redis: Redis, thread: str) -> None:
    await cache.put(thread, "u", snapshot(3))
    key = f"state_cache:{thread}:u"
    entry = json.loads(await redis.get(key) or "")
    assert entry.pop("__checkpoint_version__") == 3
    assert entry.pop("__state_meta__")["format"] == 1, "10xGraph drops the rest of it"
    assert entry == {"context": [], "notes": ["å", ""]}
    assert 86_000 < await redis.ttl(key) <= 86_400


@pytest.mark.parametrize("theirs", [True, False], ids=["an entry of 10xGraph", "one of ours"])
async def test_an_entry_never_goes_backwards(cache: RedisCache, redis: Redis, thread: str, theirs: bool) -> None:
    key = f"state_cache:{thread}:u"
    if theirs:
        nested = {"context": [{"meta": {"__checkpoint_version__": 99}}], "__checkpoint_version__": 5}
        await redis.set(key, json.dumps(nested))
        assert await cache.get(thread, "u") is None, "it does not say what row it is of"
    else:
        await cache.put(thread, "u", snapshot(5))
    assert not await cache.put(thread, "u", snapshot(4, unsaved=9))
    assert json.loads(await redis.get(key) or "")["__checkpoint_version__"] == 5
    assert await cache.put(thread, "u", snapshot(5, unsaved=2))
    assert not await cache.put(thread, "u", snapshot(5, unsaved=1))
    assert await cache.put(thread, "u", snapshot(5, unsaved=3))
    assert await cache.put(thread, "u", snapshot(6))
    kept = await cache.get(thread, "u")
    assert kept is not None
    assert (kept.version, kept.unsaved) == (6, 0)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\xff\x00",
        b"null",
        b"[]",
        b"{}",
        b'{"__state_meta__": 1}',
        b'{"__state_meta__":{"tenxgraph_temporal":{}}}',
    ],
)
async def test_nonsense_is_no_entry(
    cache: RedisCache, redis: Redis, counters: Counters, thread: str, entry: bytes
) -> None:
    await redis.set(f"state_cache:{thread}:u", entry)
    assert await cache.get(thread, "u") is None
    if entry != b"{}":
        assert counters["tenxgraph.cache.faults"] == 1
    assert await cache.put(thread, "u", snapshot(1))
    assert await cache.get(thread, "u") == snapshot(1)


async def test_another_threads_entry_is_none(cache: RedisCache, redis: Redis, counters: Counters, thread: str) -> None:
    await cache.put("another", "u", snapshot())
    await redis.rename("state_cache:another:u", f"state_cache:{thread}:u")
    assert await cache.get(thread, "u") is None
    assert counters["tenxgraph.cache.faults"] == 1


async def test_reads_that_were_given_up_do_not_answer_others(cache: RedisCache, app: App) -> None:
    threads = [app.thread() for _ in range(20)]
    for version, name in enumerate(threads):
        await cache.put(name, "u", snapshot(version))
    for round_ in range(30):
        asked = [asyncio.create_task(cache.get(name, "u")) for name in threads]
        await asyncio.sleep(0.0003 * (round_ % 10))
        for task in asked[::2]:
            task.cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for version, answer in enumerate(answers):
            if not isinstance(answer, BaseException):
                assert answer == snapshot(version)


async def test_a_full_cache_refuses_and_goes_on(counters: Counters, thread: str) -> None:
    async with dev_stack(temporal=False, postgres=False) as stack, Redis.from_url(stack.redis_url) as redis:
        cache = RedisCache.open(stack.redis_url, metrics=counters.metrics)
        await redis.config_set("maxmemory", "1")
        assert not await cache.put(thread, "u", snapshot())
        assert await cache.get(thread, "u") is None
        assert counters["tenxgraph.cache.faults"] == 1
        await redis.config_set("maxmemory", "0")
        assert await cache.put(thread, "u", snapshot()), "a refusal is no reason to leave it alone"
        await cache.close()


async def test_one_that_is_down_costs_nothing_and_is_found_again(counters: Counters, thread: str) -> None:
    async with dev_stack(temporal=False, postgres=False) as stack:
        cache = RedisCache.open(stack.redis_url, metrics=counters.metrics)
        await cache.put(thread, "u", snapshot())
        await stack.redis.stop()
        started = time.monotonic()
        for _ in range(100):
            assert await cache.get(thread, "u") is None
        assert time.monotonic() - started < 4 * DEADLINE
        assert counters["tenxgraph.cache.faults"] == 3, "then it is left alone for a while"
        await stack.redis.start()

        async with asyncio.timeout(10):
            while not await cache.put(thread, "u", snapshot()):
                await asyncio.sleep(0.1)
        assert await cache.get(thread, "u") == snapshot()
        await cache.close()


async def test_one_that_does_not_answer_is_given_up_in_time(counters: Counters, thread: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        cache = RedisCache.open(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", metrics=counters.metrics)
        started = time.monotonic()
        assert await cache.get(thread, "u") is None
        assert time.monotonic() - started < 4 * DEADLINE
        assert counters["tenxgraph.cache.faults"] == 1
        await cache.close()


def test_a_wrong_address_is_said_at_once(counters: Counters) -> None:
    with pytest.raises(SettingsError, match="TENXGRAPH_REDIS_URL is no address of a Redis"):
        RedisCache.open("localhost:6379", metrics=counters.metrics)


# --- under the states of threads ----------------------------------------------------------------------------


def states(store: PostgresStore, cache: RedisCache, counters: Counters) -> ThreadStates:
    """The states as a worker has them that was just started."""
    return ThreadStates(store, cache=StateCache(), shared=cache, metrics=counters.metrics)


async def commit(worker: ThreadStates, run: RunRef, text: str, **config: Any) -> Position:
    base = await worker.head(run) or Snapshot()
    state = base.decode(AgentState) if base.version else AgentState()
    known_ids = frozenset(m.message_id for m in state.context)
    state.context = [*state.context, Message.text_message(text)]
    position = Position(version=base.version + 1, step=base.version, node="model", next="node")
    return await worker.commit(
        run, base, state, position, step=base.version, node="model", kind="begin", config=config, known_ids=known_ids
    )


@asynccontextmanager
async def two_workers(
    store: PostgresStore, stack: DevStack, counters: Counters
) -> AsyncIterator[tuple[ThreadStates, ThreadStates]]:
    caches = [RedisCache.open(stack.redis_url, metrics=counters.metrics) for _ in range(2)]
    yield states(store, caches[0], counters), states(store, caches[1], counters)
    for cache in caches:
        await cache.close()


async def texts(worker: ThreadStates, run: RunRef) -> list[str]:
    head = await worker.head(run)
    return [m.text() for m in head.decode(AgentState).context] if head else []


async def test_a_worker_that_takes_over_finds_the_state_in_the_cache(
    store: PostgresStore, stack: DevStack, counters: Counters, thread: str, cache: RedisCache
) -> None:
    run = RunRef(graph="g", thread_id=thread, user_id="u", run_id="r")
    async with two_workers(store, stack, counters) as (first, second):
        await commit(first, run, "one")
        await commit(first, run, "two")
        async with asyncio.timeout(5):
            while (entry := await cache.get(thread, "u")) is None or entry.version < 2:
                await asyncio.sleep(0.01)
        hits = counters["tenxgraph.cache.hits"]
        assert await texts(second, run) == ["one", "two"]
        assert counters["tenxgraph.cache.hits"] == hits + 1


async def test_a_wrong_entry_changes_no_answer(
    store: PostgresStore, stack: DevStack, counters: Counters, thread: str, cache: RedisCache
) -> None:
    """An older, a newer, a foreign one: the row in Postgres is what counts, and the entry is put right."""
    run = RunRef(graph="g", thread_id=thread, user_id="u", run_id="r")
    async with two_workers(store, stack, counters) as (first, _):
        await commit(first, run, "one")
        await commit(first, run, "two")
        true = await first.head(run)
        assert true is not None
    wrong = {"context": dump_json([Message.text_message("wrong").model_dump(mode="json")])}
    for entry in (
        replace(true, version=1, fields=wrong),
        replace(true, version=7, fields=wrong),
        replace(true, row="r/another/commit", fields=wrong),
        replace(true, state_id=true.state_id - 1, fields=wrong),
        replace(true, version=7, unsaved=3, fields=wrong),
        replace(true, unsaved=3, fields=wrong),
    ):
        await cache.drop(thread, "u")
        assert await cache.put(thread, "u", entry)
        async with two_workers(store, stack, counters) as (worker, other):
            assert await texts(worker, run) == ["one", "two"]
            assert await texts(other, run) == ["one", "two"]
        entry_now = await cache.get(thread, "u")
        assert entry_now is not None
        assert (entry_now.row, entry_now.version, entry_now.unsaved) == (true.row, 2, 0)


async def test_a_loser_clears_the_entry(
    store: PostgresStore, stack: DevStack, counters: Counters, thread: str, cache: RedisCache
) -> None:
    run = RunRef(graph="g", thread_id=thread, user_id="u", run_id="r")
    async with two_workers(store, stack, counters) as (first, second):
        await commit(first, run, "one")
        base = await second.head(run)
        await commit(first, run, "two")
        assert base is not None
        position = Position(version=2, step=1, node="model", next="node")
        forwarded = await second.commit(
            run, base, base.decode(AgentState), position, step=5, node="x", kind="node", config={}
        )
        assert forwarded.version == 2, "the run's own commit"
        assert await texts(second, run) == ["one", "two"]


async def test_runs_go_on_while_the_cache_goes_away(app: App, counters: Counters) -> None:
    def note(text: str) -> str:
        return text

    graph = agent([note], *[[call("note", "1", text="x")]] * 5)
    async with dev_stack(temporal=False, postgres=False) as stack:
        cache = RedisCache.open(stack.redis_url, metrics=counters.metrics)
        async with app.worker(graph, shared_cache=cache):
            await (await app.start("agent", app.thread())).result()
            running = await app.start("agent", thread_id := app.thread())
            await stack.redis.kill()
            await running.result()
        await cache.close()
    assert len((await app.state(thread_id)).context) == 1 + 5 * 2 + 1
