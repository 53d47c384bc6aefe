"""Real servers for all tests: one dev stack per session, one schema and task queue per test."""

from __future__ import annotations

import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from tenxgraph_temporal import WirePlugin
from tenxgraph_temporal.examples.process import outside_world
from tenxgraph_temporal.runtime.devstack import DevStack, dev_stack
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore

from .support.app import App
from .support.world import World

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Started in the background by a shell, which makes all children deaf to the Ctrl-C that some tests send them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
async def stack() -> AsyncIterator[DevStack]:
    async with dev_stack() as servers:
        yield servers


@pytest.fixture(scope="session")
def postgres_dsn(stack: DevStack) -> str:
    return stack.postgres_dsn


@pytest.fixture(scope="session")
async def client(stack: DevStack) -> Client:
    return await Client.connect(stack.temporal_address, plugins=[WirePlugin()])


@pytest.fixture
async def store(postgres_dsn: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(postgres_dsn, schema=f"t_{uuid.uuid4().hex}", pool_size=10)
    await opened.setup()
    yield opened
    await opened.close()


@pytest.fixture
async def app(stack: DevStack, client: Client, store: PostgresStore, tmp_path: Path) -> AsyncIterator[App]:
    """One test's own corner of the servers; afterwards every history of the test is replayed."""
    corner = App(stack=stack, client=client, store=store, logs=tmp_path)
    yield corner
    await corner.replay_all()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with outside_world() as address:
        yield World(address)


@pytest.fixture(params=["activity", "batch", "local"])
def execution(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test runs with one activity per call, with one for all calls of a message, and with a local one for them."""
    monkeypatch.setenv("EXECUTION", request.param)
    return str(request.param)
