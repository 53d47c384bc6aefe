"""A worker is killed at every moment of a tool step; a second one finishes, and each effect happens once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tenxgraph_temporal.runtime.tools.identity import idempotency_key

from ..support.app import App
from ..support.graphs import StoryState
from ..support.world import World

STORY = "tenxgraph_temporal.tests.support.graphs:story"
TOOLS = ("lookup", "charge", "receipt")

MOMENTS = {
    "before any tool": ",".join(f"tool.called/{tool}=kill" for tool in TOOLS),
    "after one tool's record": "tool.recorded/charge=kill",
    "after all records": "commit.started/tools=kill",
    "after the commit, before its reply": "commit.done/tools=kill",
}


def normalised(state: StoryState) -> Any:
    """The state without what is new in every run."""
    data = state.model_dump(mode="json")
    for message in data["context"]:
        message["message_id"] = message["timestamp"] = None
    data["execution_meta"]["thread_id"] = None
    return data


async def undisturbed(app: App, world: World) -> Any:
    thread_id = app.thread()
    async with app.process(STORY, OUTSIDE_WORLD=world.address):
        await (await app.start("story", thread_id)).result()
    return normalised(await app.state(thread_id, StoryState))


async def assert_as_undisturbed(app: App, world: World, thread_id: str, expected: Any) -> None:
    assert normalised(await app.state(thread_id, StoryState)) == expected
    rows = await app.store.list_messages(thread_id, None)
    context = (await app.state(thread_id)).context
    assert [row.message_id for row in rows] == [message.message_id for message in context]
    versions = [version.version for version in await app.store.list_versions(thread_id, None)]
    assert versions == list(range(len(versions), 0, -1))


async def assert_recorded_calls_never_ran_again(app: App, world: World, threads: list[str]) -> None:
    """The one window is before the record: after it, no effect of the call follows."""
    effects = [(entry["body"]["key"], entry["at"]) for entry in await world.log()]
    recorded = {}
    for thread_id in threads:
        calls = await app.store.calls(thread_id)
        assert len(calls) == len(TOOLS), calls
        for record in calls:
            message_id, _, call_id = record.ledger_key.partition(":")
            recorded[idempotency_key(thread_id, message_id, call_id)] = record.at.timestamp()
    assert {key for key, _ in effects} == set(recorded)
    late = [(key, at) for key, at in effects if at > recorded[key]]
    assert not late, late


@pytest.mark.usefixtures("execution")
@pytest.mark.parametrize("moment", MOMENTS)
async def test_killed_at_a_moment(app: App, world: World, moment: str) -> None:
    thread_id = app.thread()
    async with app.process(STORY, OUTSIDE_WORLD=world.address, TENXGRAPH_FAULTS=MOMENTS[moment]) as first:
        run = await app.start("story", thread_id)
        assert await first.wait() == -9, first.output
    before = await world.counts()
    async with app.process(STORY, OUTSIDE_WORLD=world.address):
        await run.result()
    after = await world.counts()
    assert after["charge"] == 1, (before, after)
    if moment not in ("before any tool", "after one tool's record"):  # there, a sibling may be in its own window
        assert all(after[tool] == 1 for tool in TOOLS), (before, after)
    await assert_recorded_calls_never_ran_again(app, world, [thread_id])
    await assert_as_undisturbed(app, world, thread_id, await undisturbed(app, world))


async def test_killed_during_the_commit(app: App, world: World) -> None:
    """The commit's statement waits in Postgres for the thread's lock when its worker dies.

    Postgres goes on with the statement of a client that is gone, so the commit may or may not come to be; the
    second worker has to cope with either.
    """
    thread_id = app.thread()
    await world.hold("charge")
    async with app.process(STORY, OUTSIDE_WORLD=world.address) as first:
        run = await app.start("story", thread_id)
        await world.until("charge")
        async with app.commits_held(thread_id) as commit_waits:
            await world.release("charge")
            await commit_waits()
            await first.kill()
    async with app.process(STORY, OUTSIDE_WORLD=world.address):
        await run.result()
    counts = await world.counts()
    assert all(counts[tool] == 1 for tool in TOOLS), counts
    await assert_as_undisturbed(app, world, thread_id, await undisturbed(app, world))


async def test_killed_at_random_moments(app: App, world: World) -> None:
    """Kill after kill, whenever: one effect per call, dense versions, messages in step with the state."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    threads = [app.thread() for _ in range(12)]
    runs = []
    async with app.process(STORY, OUTSIDE_WORLD=world.address):
        for thread_id in threads:
            runs.append(await app.start("story", thread_id))
        await asyncio.sleep(rng.uniform(0.0, 0.5))
    for _ in range(2):
        async with app.process(STORY, OUTSIDE_WORLD=world.address) as worker:
            await asyncio.sleep(rng.uniform(0.2, 3.0))
            await worker.kill()
    async with app.process(STORY, OUTSIDE_WORLD=world.address):
        await asyncio.gather(*(run.result() for run in runs))
    await assert_recorded_calls_never_ran_again(app, world, threads)
    for thread_id in threads:
        state = await app.state(thread_id, StoryState)
        assert [m.role for m in state.context] == ["user", "assistant", "tool", "tool", "tool", "assistant"]
        rows = await app.store.list_messages(thread_id, None)
        assert [row.message_id for row in rows] == [m.message_id for m in state.context]
