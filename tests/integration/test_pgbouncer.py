"""Behind pgbouncer in transaction mode, where each transaction may be on another server connection."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from tenxgraph_temporal import ToolContext, tool
from tenxgraph_temporal.runtime.errors import StoreError
from tenxgraph_temporal.runtime.settings import Settings
from tenxgraph_temporal.runtime.storage import Store, open_store

from ..support.app import App
from ..support.graphs import agent, call

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed (a package of Debian's)")

CONFIG = """
[databases]
{name} = host={host} port={port} dbname={name} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
logfile = {directory}/log
"""


@pytest.fixture
async def bouncer(app: App) -> AsyncIterator[str]:
    """The address of the test's Postgres by way of a pgbouncer with three server connections."""
    with tempfile.TemporaryDirectory() as made:  # pytest's own directories are closed to other accounts
        directory = Path(made)
        directory.chmod(0o777)
        async with pgbouncer(app.stack.postgres_dsn, directory) as dsn:
            yield dsn


@asynccontextmanager
async def pgbouncer(postgres_dsn: str, directory: Path) -> AsyncIterator[str]:
    postgres = urlsplit(postgres_dsn)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        listen = free.getsockname()[1]
    name = postgres.path.strip("/")
    config = directory / "pgbouncer.ini"
    config.write_text(
        CONFIG.format(
            name=name,
            host=postgres.hostname,
            port=postgres.port,
            user=postgres.username,
            listen=listen,
            directory=directory,
        )
    )
    account = ["-u", "nobody"] if os.geteuid() == 0 else []  # it refuses to be root
    process = await asyncio.create_subprocess_exec(str(PGBOUNCER), "-q", *account, str(config))
    ended = asyncio.create_task(process.wait())
    dsn = f"postgresql://{postgres.username}@127.0.0.1:{listen}/{name}"
    try:
        async with asyncio.timeout(10):
            while True:
                try:
                    await (await asyncpg.connect(dsn, statement_cache_size=0)).close()
                    break
                except OSError:
                    assert not ended.done(), (directory / "log").read_text()
                    await asyncio.sleep(0.05)
        yield dsn
    finally:
        if not ended.done():
            process.kill()
        await ended


def settings(app: App, dsn: str, **changes: Any) -> Settings:
    given = {"database_url": dsn, "database_schema": app.store.schema, "database_pool_size": 20, **changes}
    return Settings.model_validate(given)


async def test_runs_share_three_server_connections(app: App, bouncer: str) -> None:
    done: list[str] = []

    def plain(n: int) -> str:
        done.append("plain")
        return str(n)

    @tool(in_doubt="fail")
    async def claimed(n: int) -> str:
        done.append("claimed")
        return str(n)

    async def shared(n: int, context: ToolContext) -> str:
        async with context.transaction() as connection:
            await connection.execute("SELECT pg_sleep(0.01)")
        done.append("shared")
        return str(n)

    tools = ("plain", "claimed", "shared")
    graph = agent([plain, claimed, shared], *[[call(name, name, n=1) for name in tools]] * 3)
    store = await open_store(settings(app, bouncer, database_statement_cache=0))
    threads = [app.thread() for _ in range(30)]
    async with app.worker(graph, store=store, max_cached_workflows=100):
        runs = [await app.start("agent", thread_id) for thread_id in threads]
        await asyncio.gather(*(run.result() for run in runs))
    await store.close()
    assert len(done) == 30 * 9
    for thread_id in threads:
        assert {c.status for c in await app.store.calls(thread_id)} == {"finished"}
        assert len((await app.state(thread_id)).context) == 1 + 3 * 4 + 1


async def failures_of_many_statements(store: Store) -> list[BaseException]:
    async def ask(number: int) -> None:
        for _ in range(50):
            await store.lookup(f"t{number}", ["k"])

    asked = await asyncio.gather(*(ask(number) for number in range(20)), return_exceptions=True)
    await store.close()
    return [failure for failure in asked if failure is not None]


async def test_without_the_setting_the_error_names_it(app: App, bouncer: str) -> None:
    assert not await failures_of_many_statements(await open_store(settings(app, bouncer, database_statement_cache=0)))
    failures = await failures_of_many_statements(await open_store(settings(app, bouncer)))
    assert failures
    for failure in failures:
        assert isinstance(failure, StoreError), failure
        assert "TENXGRAPH_DATABASE_STATEMENT_CACHE=0" in str(failure)
