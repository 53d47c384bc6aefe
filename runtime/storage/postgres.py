"""The Postgres store: the default, and the one that production uses."""

from __future__ import annotations

from typing import Any

import asyncpg

from ..errors import SettingsError, StoreUnavailable
from .pg_admin import PgAdmin
from .pg_database import PgDatabase, is_transient
from .pg_ledger import PgLedger


class PostgresStore(PgLedger, PgAdmin):
    """Versioned state and tool ledger in one Postgres schema, in 10xGraph's tables.

    Args:
        pool: An asyncpg pool. One that was passed in stays open on ``close``.
        schema: Name of the schema, ``public`` by default.
        state_history_limit: Kept versions per thread; 0 keeps all.
        enforce_user_isolation: Refuse callers with another ``user_id`` than the thread's.
        retry_timeout: Seconds for which a transaction is repeated over lost connections.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        *,
        schema: str = "public",
        state_history_limit: int = 20,
        enforce_user_isolation: bool = True,
        retry_timeout: float = 10.0,
        owns_pool: bool = False,
    ) -> None:
        super().__init__()
        self._db = PgDatabase(pool, schema=schema, owns_pool=owns_pool, retry_timeout=retry_timeout)
        self._state_history_limit = state_history_limit
        self._enforce_user_isolation = enforce_user_isolation

    @classmethod
    async def open(
        cls, dsn: str, *, pool_size: int = 10, pool_options: dict[str, Any] | None = None, **options: Any
    ) -> PostgresStore:
        """Open a pool of at most ``pool_size`` connections on ``dsn``; ``options`` as the constructor's.

        Behind pgbouncer in transaction mode, pass ``pool_options={"statement_cache_size": 0}``.

        Raises:
            StoreUnavailable: Postgres cannot be reached.
            SettingsError: The address is not one.
        """
        try:
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=pool_size,
                reset=_keep,
                **{"command_timeout": 60, "timeout": 10, **(pool_options or {})},
            )
        except ValueError:
            # What the driver says of an address that it cannot read may quote its password.
            raise SettingsError(
                "TENXGRAPH_DATABASE_URL cannot be read as postgresql://user:password@host:port/name?sslmode=require; "
                "percent-encode any of :/?#[]@ in the user and the password"
            ) from None
        except (
            asyncpg.InvalidCatalogNameError,
            asyncpg.InvalidAuthorizationSpecificationError,
        ) as exc:
            raise SettingsError(f"TENXGRAPH_DATABASE_URL: {exc}") from exc
        except Exception as exc:
            if not is_transient(exc):
                raise
            raise StoreUnavailable(f"Postgres cannot be reached ({type(exc).__name__}: {exc}); is it up?") from exc
        return cls(pool, owns_pool=True, **options)

    @property
    def schema(self) -> str:
        """The schema that holds the tables."""
        return self._db.schema

    @property
    def pool(self) -> asyncpg.Pool:
        """The pool, for statements of the caller's own. What they set for the session, they have to reset."""
        return self._db.pool

    async def setup(self) -> None:
        """See ``Store.setup``."""
        await self._db.migrate()

    async def check(self) -> None:
        """See ``Store.check``."""
        await self._db.check()

    async def close(self) -> None:
        """See ``Store.close``."""
        await self._db.close()


async def _keep(connection: asyncpg.Connection) -> None:
    """Instead of asyncpg's reset of a connection that goes back to the pool: a round trip after each statement.

    Our statements leave nothing behind in a session; ``context.transaction()``, where a tool's do, resets it itself.
    """
