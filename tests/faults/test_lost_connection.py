"""A worker that is well but cannot reach a server: Temporal for a moment, Temporal for too long, Postgres."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from temporalio.common import RetryPolicy

from tenxgraph_temporal.runtime.errors import StoreUnavailable
from tenxgraph_temporal.workflows import dispatch

from ..support.app import App
from ..support.graphs import StoryState, agent, call
from ..support.proxy import door_to
from ..support.stopping import assert_saved_as_stopped, stopped
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


@dataclass
class Outage:
    """A store that takes no commit for a while: it refuses or, where it ``hangs``, never answers."""

    store: Any
    hangs: bool
    commits: int = 2
    """As many are lost from now on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def commit(self, commit: Any) -> Any:
        if self.commits:
            self.commits -= 1
            if self.hangs:
                await asyncio.sleep(3600)
            raise StoreUnavailable("away")
        return await self.store.commit(commit)


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
async def test_an_outage_outlasts_the_attempts_at_a_commit(
    app: App, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """The commit that begins a run, and the one that answers a stop, are made when the database is back."""
    monkeypatch.setattr(dispatch, "_COMMIT_RETRY", RetryPolicy(maximum_attempts=1))
    monkeypatch.setattr(dispatch, "_COMMIT_TIMEOUT", timedelta(seconds=1))
    running = asyncio.Event()

    async def hang() -> str:
        running.set()
        await asyncio.sleep(3600)
        return "late"

    thread_id, store = app.thread(), Outage(app.store, hangs)
    async with app.worker(agent([hang], [call("hang", "1")]), store=store):
        run = await app.start("agent", thread_id)
        await asyncio.wait_for(running.wait(), 20)
        assert store.commits == 0
        store.commits = 2
        await stopped(run, within=20)
    assert store.commits == 0
    assert_saved_as_stopped(await app.state(thread_id))
