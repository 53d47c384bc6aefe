"""Stores: versioned thread state and the tool ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import SettingsError
from ..settings import Settings
from .contract import Store

OnConnect = Callable[[Any], Awaitable[None]]


async def open_store(settings: Settings, *, on_connect: OnConnect | None = None) -> Store:
    """The store that ``database_url`` names. ``on_connect`` is called with each new connection to Postgres.

    Raises:
        SettingsError: No or an unknown URL.
        StoreUnavailable: The database cannot be reached.
    """
    url = settings.database_url.get_secret_value()
    options: dict[str, Any] = {
        "state_history_limit": settings.state_history_limit,
        "enforce_user_isolation": settings.enforce_user_isolation,
    }
    scheme = url.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        from .postgres import PostgresStore

        return await PostgresStore.open(
            url,
            pool_size=settings.database_pool_size,
            pool_options={"statement_cache_size": settings.database_statement_cache, "init": on_connect},
            schema=settings.database_schema,
            **options,
        )
    if scheme == "sqlite":
        from .sqlite import SqliteStore

        return await SqliteStore.from_url(url, **options)
    if scheme == "memory":
        from .memory import MemoryStore

        return MemoryStore(**options)
    raise SettingsError(
        "TENXGRAPH_DATABASE_URL names no database; set it to postgresql://user:password@host/name, "
        "sqlite:///path/to/file, or memory: to try things out in one process"
    )


__all__ = ["Store", "open_store"]
