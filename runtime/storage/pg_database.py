"""Connections to Postgres: the pool, its retries, and the schema's migrations."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any, NoReturn, TypeVar

import asyncpg

from ..errors import SchemaError, SettingsError, StoreError, StoreUnavailable, TenxGraphError
from ..state.encoding import load_json
from .contract import MessageIdTaken

T = TypeVar("T")

_SCHEMA_NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")
_MIGRATION_LOCK = 0x41474E54464C5721  # the lock that 10xGraph takes for the same tables
_BASE_VERSION = 3  # 10xGraph's schema
_ADDITIONS_VERSION = 1  # ours on top of it

# What passes by itself: lost connections, restarts, failover, lock and statement timeouts.
_TRANSIENT = (
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.TransactionRollbackError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.LockNotAvailableError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,  # on a connection whose end the driver has seen but not yet acted on
    OSError,
    TimeoutError,
)


def is_transient(exc: BaseException) -> bool:
    """Whether repeating the transaction on a fresh connection may help."""
    if isinstance(exc, asyncpg.InterfaceError):  # also raised for wrong arguments, which never pass
        return "connection" in str(exc) or "closing" in str(exc) or "closed" in str(exc)
    return isinstance(exc, _TRANSIENT)


class PgDatabase:
    """A pool on one schema of one database.

    Args:
        pool: An asyncpg pool; closed by ``close`` only if ``owns_pool``.
        schema: A plain identifier; quoted into statements, hence checked.
        retry_timeout: Seconds for which a transaction is repeated before ``StoreUnavailable``.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        *,
        schema: str = "public",
        owns_pool: bool = True,
        retry_timeout: float = 10.0,
    ) -> None:
        if not _SCHEMA_NAME.match(schema):
            raise SettingsError(f"schema name {schema!r} is not a plain identifier; use letters, digits and _ only")
        self.pool = pool
        self.schema = schema
        self.quoted = f'"{schema}"'
        self._owns_pool = owns_pool
        self._retry_timeout = retry_timeout
        self._statements: dict[str, str] = {}

    def sql(self, statement: str) -> str:
        """``statement`` with ``{s}`` replaced by the quoted schema."""
        known = self._statements.get(statement)
        if known is None:
            known = self._statements[statement] = statement.format(s=self.quoted)
        return known

    async def run(self, operation: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        """``operation`` on a pooled connection, repeated with jitter while the fault is a passing one.

        The operation must be one transaction, safe to repeat after an unknown outcome.

        Raises:
            StoreUnavailable: It did not pass within ``retry_timeout``.
            StoreError: Postgres refused it for good.
        """
        deadline = asyncio.get_running_loop().time() + self._retry_timeout
        pause = 0.02
        while True:
            try:
                async with self.pool.acquire(timeout=self._retry_timeout) as connection:
                    try:
                        return await operation(connection)
                    except asyncpg.InternalClientError:
                        connection.terminate()  # of no more use to anybody
                        raise
            except Exception as exc:
                if not is_transient(exc):
                    _raise_refused(exc)
                if asyncio.get_running_loop().time() + pause > deadline:
                    raise StoreUnavailable(
                        f"Postgres did not answer within {self._retry_timeout:g} s "
                        f"({type(exc).__name__}: {exc}); check that it is up and reachable"
                    ) from exc
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 1.0)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection]:
        """One transaction, not repeated: its body has effects of its own.

        Raises:
            StoreUnavailable: It was lost, or has to be made again. The body's own errors come out as they are,
                also those that look alike, such as a refused connection to somebody else.
        """
        lost = True
        try:
            async with self.pool.acquire(timeout=self._retry_timeout) as connection:
                try:
                    async with connection.transaction():
                        yield connection
                finally:
                    lost = connection.is_closed()
                    if not lost:
                        await connection.reset()  # whatever the body did to the session
        except Exception as exc:
            if is_transient(exc) and (lost or not isinstance(exc, OSError | TimeoutError)):
                raise StoreUnavailable(f"the transaction was lost ({type(exc).__name__}: {exc})") from exc
            raise

    async def migrate(self) -> None:
        """Bring the schema up to date in one transaction, under 10xGraph's own advisory lock."""

        async def apply(connection: asyncpg.Connection) -> None:
            async with connection.transaction():
                await connection.execute(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
                await connection.execute(self.sql("CREATE SCHEMA IF NOT EXISTS {s}"))
                for table in ("schema_version", "tenxgraph_temporal_schema"):
                    await connection.execute(
                        self.sql(f"CREATE TABLE IF NOT EXISTS {{s}}.{table} (version int PRIMARY KEY, ")
                        + "applied_at timestamptz DEFAULT now())"
                    )
                base, additions = await self._versions(connection)
                folder = resources.files(__package__).joinpath("migrations")
                for number in range(base + 1, _BASE_VERSION + 1):
                    (file,) = (f for f in folder.iterdir() if f.name.startswith(f"{number:04}_"))
                    await connection.execute(self.sql(file.read_text()))
                for number in range(additions + 1, _ADDITIONS_VERSION + 1):
                    file = folder.joinpath(f"additions_{number:04}.sql")
                    await connection.execute(self.sql(file.read_text()))
                for table, known in (
                    ("schema_version", _BASE_VERSION),
                    ("tenxgraph_temporal_schema", _ADDITIONS_VERSION),
                ):
                    await connection.execute(
                        self.sql(f"INSERT INTO {{s}}.{table} (version) VALUES ($1) ON CONFLICT DO NOTHING"),
                        known,
                    )

        await self.run(apply)

    async def check(self) -> None:
        """Verify that the schema is the one this code needs. Never writes."""

        async def versions(connection: asyncpg.Connection) -> tuple[int, int]:
            present = await connection.fetchval(
                "SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename = ANY($2)",
                self.schema,
                ["schema_version", "tenxgraph_temporal_schema"],
            )
            return await self._versions(connection) if present == 2 else (0, 0)

        if await self.run(versions) != (_BASE_VERSION, _ADDITIONS_VERSION):
            raise SchemaError(f"schema {self.schema!r} is not set up for this version; run: tenxgraph-temporal setup")

    async def _versions(self, connection: asyncpg.Connection) -> tuple[int, int]:
        found = []
        for table, known in (
            ("schema_version", _BASE_VERSION),
            ("tenxgraph_temporal_schema", _ADDITIONS_VERSION),
        ):
            version = await connection.fetchval(self.sql(f"SELECT coalesce(max(version), 0) FROM {{s}}.{table}"))
            if version > known:
                raise SchemaError(
                    f"{self.schema}.{table} is at version {version}, newer than the {known} that this code "
                    "knows; upgrade tenxgraph-temporal"
                )
            found.append(version)
        return found[0], found[1]

    async def close(self) -> None:
        """Close the pool, if it is ours."""
        if self._owns_pool:
            await self.pool.close()


def _raise_refused(exc: Exception) -> NoReturn:
    """Raise a driver error that will not pass in our terms; our own errors as they are."""
    if isinstance(exc, asyncpg.UndefinedTableError | asyncpg.UndefinedColumnError | asyncpg.InvalidSchemaNameError):
        raise SchemaError(f"{exc}; run: tenxgraph-temporal setup") from exc
    if isinstance(exc, TenxGraphError | MessageIdTaken):
        raise exc
    if isinstance(exc, asyncpg.InvalidSQLStatementNameError | asyncpg.DuplicatePreparedStatementError):
        raise StoreError(
            "a prepared statement was not on the connection that it was used on, as behind pgbouncer in transaction "
            "mode; set TENXGRAPH_DATABASE_STATEMENT_CACHE=0"
        ) from exc
    raise StoreError(f"Postgres refused the statement: {type(exc).__name__}: {exc}") from exc


def any_json(value: Any) -> Any:
    """A ``jsonb`` column as asyncpg gives it (text, or decoded by a codec of the user's pool)."""
    return load_json(value) if isinstance(value, str | bytes) else value
