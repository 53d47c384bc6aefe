"""A worker that is well but cannot reach a server: Temporal for a moment, Temporal for too long, Postgres."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from ..support.app import App
from ..support.graphs import StoryState
from ..support.proxy import door_to
from ..support.world import World
from .test_worker_killed import STORY, TOOLS, assert_as_undisturbed, undisturbed


async def calls_by_status(app: App, thread_id: str) -> list[str]:
    return sorted(record.status for record in await app.store.calls(thread_id))


async def test_temporal_is_out_of_reach_for_a_moment(app: App, world: World) -> None:
    """Shorter than heartbeats may be missing: the attempt goes on, and every effect happens once."""
    expected = await undisturbed(app, world)
    thread_id = app.thread()
    await world.hold("charge")
    async with door_to(app.stack.temporal.port) as door:
        env = {"TEMPORAL_ADDRESS": door.address, "OUTSIDE_WORLD": world.address}
        async with app.process(STORY, **env):
            run = await app.start("story", thread_id)
            await world.until("charge", 2)
            door.shut()
            await asyncio.sleep(2)
            await world.release("charge")
            await asyncio.sleep(2)
            door.open()
            await run.result()
    assert dict(await world.counts()) == dict.fromkeys(TOOLS, 2), "once here, once undisturbed"
    await assert_as_undisturbed(app, world, thread_id, expected)


async def test_temporal_is_out_of_reach_for_too_long(app: App, world: World) -> None:
    """The attempt is given to another worker; what the first one still does is recorded once, by whoever is first."""
    expected = await undisturbed(app, world)
    thread_id = app.thread()
    await world.hold("charge")
    async with door_to(app.stack.temporal.port) as door:
        env = {"TEMPORAL_ADDRESS": door.address, "OUTSIDE_WORLD": world.address}
        async with app.process(STORY, **env):
            run = await app.start("story", thread_id)
            for tool in TOOLS:
                await world.until(tool, 2)
            door.shut()
            async with app.process(STORY, OUTSIDE_WORLD=world.address):
                await world.until("charge", 3, timeout=60)
                await world.release("charge")
                await run.result()
                door.open()
                # The worker that was cut off serves on.
                await (await app.start("story", app.thread())).result()
    counts = await world.counts()
    assert (counts["lookup"], counts["receipt"]) == (3, 3), counts
    assert await calls_by_status(app, thread_id) == ["finished"] * 3
    await assert_as_undisturbed(app, world, thread_id, expected)


async def test_postgres_is_out_of_reach_between_effect_and_record(app: App, world: World) -> None:
    """The record is retried without the tool; nothing runs twice."""
    expected = await undisturbed(app, world)
    thread_id = app.thread()
    postgres = urlsplit(app.stack.postgres_dsn)
    assert postgres.port is not None
    await world.hold("charge")
    async with door_to(postgres.port) as door:
        dsn = f"postgresql://{postgres.username}@{door.address}{postgres.path}"
        async with app.process(STORY, TENXGRAPH_DATABASE_URL=dsn, OUTSIDE_WORLD=world.address):
            run = await app.start("story", thread_id)
            for tool in TOOLS:
                await world.until(tool, 2)
            door.shut()
            await world.release("charge")
            await asyncio.sleep(3)
            door.open()
            await run.result()
    assert dict(await world.counts()) == dict.fromkeys(TOOLS, 2)
    await assert_as_undisturbed(app, world, thread_id, expected)
    assert (await app.state(thread_id, StoryState)).execution_meta.status == "completed"
