"""The stack: Temporal, Postgres and Valkey, started side by side and ended together."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._layout import Layout, free_port, open_layout
from ._postgres import PostgresInstallation
from ._temporal import temporal_server
from ._valkey import valkey_server
from .errors import DevStackError, PortTakenError
from .server import Server

SEARCH_ATTRIBUTES = {
    "TenxGraph": "Keyword",
    "TenxStatus": "Keyword",
    "TenxThreadId": "Keyword",
    "TenxUserId": "Keyword",
}
PORT_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class DevStack:
    """The running servers. Asking for one that was not started raises ``DevStackError``."""

    directory: Path
    """Data and logs, one directory per server."""
    servers: Mapping[str, Server]
    """By name: ``temporal``, ``postgres``, ``redis``."""
    ui_port: int | None

    @property
    def temporal(self) -> Server:
        """The Temporal dev server with its UI."""
        return self._server("temporal")

    @property
    def postgres(self) -> Server:
        """Postgres, with its superuser ``postgres`` and no password."""
        return self._server("postgres")

    @property
    def redis(self) -> Server:
        """Valkey."""
        return self._server("redis")

    @property
    def temporal_address(self) -> str:
        """For ``Client.connect``."""
        return f"127.0.0.1:{self.temporal.port}"

    @property
    def ui_url(self) -> str:
        """Temporal's UI, for a browser."""
        self._server("temporal")
        return f"http://127.0.0.1:{self.ui_port}"

    @property
    def postgres_dsn(self) -> str:
        """For ``asyncpg``; the database is ``postgres``."""
        return f"postgresql://postgres@127.0.0.1:{self.postgres.port}/postgres"

    @property
    def redis_url(self) -> str:
        """For ``redis.from_url``."""
        return f"redis://127.0.0.1:{self.redis.port}/0"

    def _server(self, name: str) -> Server:
        if name not in self.servers:
            raise DevStackError(f"{name} is not part of this stack; call dev_stack({name}=True)")
        return self.servers[name]


@asynccontextmanager
async def dev_stack(
    directory: Path | None = None,
    *,
    temporal: bool = True,
    postgres: bool = True,
    redis: bool = True,
    temporal_port: int | None = None,
    ui_port: int | None = None,
    keep_workflows: bool | None = None,
    namespaces: Sequence[str] = (),
    search_attributes: Mapping[str, str] = SEARCH_ATTRIBUTES,
    temporal_args: Sequence[str] = (),
) -> AsyncIterator[DevStack]:
    """Start the servers, in parallel, and stop them at the end of the block.

    They also end within seconds if this process is killed, and a stack without a directory then
    leaves no data. Everything listens on 127.0.0.1 without a password: for development only.

    Args:
        directory: Keeps the data for the next start; one stack at a time. None: a temporary directory.
        temporal: Whether to start the Temporal dev server and its UI.
        postgres: Whether to start Postgres.
        redis: Whether to start Valkey.
        temporal_port: gRPC port; None: a free one, which may differ from start to start.
        ui_port: Port of Temporal's UI; None: a free one.
        keep_workflows: Whether workflows outlive a restart of Temporal; None: if ``directory`` is given.
        namespaces: Created besides ``default``.
        search_attributes: Name to type, as ``temporal server start-dev --search-attribute`` takes them.
        temporal_args: Further arguments of ``temporal server start-dev``.

    Raises:
        DevStackError: A server is not installed, did not start, or the directory is in use.
    """
    layout = await open_layout(directory)
    started: list[Server] = []
    servers: dict[str, Server] = {}
    installation: PostgresInstallation | None = None
    chosen_ui_port: int | None = None

    async def start(make: Callable[[], Server]) -> None:
        for attempt in range(PORT_ATTEMPTS):
            server = make()
            started.append(server)
            try:
                await server.start()
            except PortTakenError:
                if attempt == PORT_ATTEMPTS - 1:
                    raise
            else:
                servers[server.name] = server
                return

    def make_temporal() -> Server:
        nonlocal chosen_ui_port
        chosen_ui_port = ui_port or free_port()
        return temporal_server(
            layout,
            port=temporal_port or free_port(),
            ui_port=chosen_ui_port,
            keep=layout.persistent if keep_workflows is None else keep_workflows,
            namespaces=namespaces,
            search_attributes=search_attributes,
            extra_arguments=temporal_args,
        )

    async def start_postgres() -> None:
        nonlocal installation
        installation = prepared = PostgresInstallation(layout)
        await prepared.prepare()
        await start(lambda: prepared.server(free_port()))

    try:
        starts: list[Coroutine[Any, Any, None]] = []
        if temporal:
            starts.append(start(make_temporal))
        if postgres:
            starts.append(start_postgres())
        if redis:
            starts.append(start(lambda: valkey_server(layout, port=free_port())))
        await _all_or_none(starts)
        yield DevStack(directory=layout.root, servers=servers, ui_port=chosen_ui_port)
    finally:
        await _close(layout, started, installation)


async def _all_or_none(starts: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run them side by side; if one fails the others are cancelled, and its error is ours."""
    tasks = [asyncio.create_task(start) for start in starts]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            if not task.cancelling():  # our own cancellation reached them: a second one would cut their clean-up
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _close(layout: Layout, started: Sequence[Server], installation: PostgresInstallation | None) -> None:
    for server in started:
        server.release()  # all of them before the first await: a cancellation can't keep one running
    try:
        await asyncio.gather(*(server.released() for server in started))
    finally:
        layout.close()
        if installation is not None and installation.copy_root is not None:
            shutil.rmtree(installation.copy_root, ignore_errors=True)
