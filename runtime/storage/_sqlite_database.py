"""One SQLite file: its connections, its transactions, and what its errors mean."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

try:
    import aiosqlite
except ImportError as exc:
    raise ImportError("the SQLite store needs aiosqlite: pip install 'tenxgraph-temporal[sqlite]'") from exc

from ..errors import SchemaError, SettingsError, StoreUnavailable
from ._sqlite_errors import is_busy, is_transient, translated
from ._sqlite_schema import STATEMENTS, VERSION_TABLES, to_text
from ._values import Clock

T = TypeVar("T")
Rows = list[sqlite3.Row]
Parameters = tuple[Any, ...]

_BUSY_TIMEOUT = 1.0  # seconds that SQLite itself waits for a lock; our own attempts come on top


class SqliteDatabase:
    """A file with one connection for reading and one for writing; other processes may have theirs.

    A started write always runs to its end: a caller that is cancelled just does not hear of it.

    Args:
        path: The file; made if it is missing, its directory is not.
        retry_timeout: Seconds for which a lock of somebody else is waited for before ``StoreUnavailable``.
    """

    def __init__(self, path: Path, *, retry_timeout: float = 10.0) -> None:
        self.path = path
        self.clock = Clock()
        self._retry_timeout = retry_timeout
        self._write_lock = asyncio.Lock()
        self._working: set[asyncio.Task[Any]] = set()
        self._reader: aiosqlite.Connection | None = None
        self._writer: aiosqlite.Connection | None = None

    async def open(self) -> None:
        """Open both connections.

        Raises:
            SettingsError: The path cannot be a database.
            StoreUnavailable: The file is locked, or cannot be reached.
        """
        if not self.path.parent.is_dir():
            raise SettingsError(f"{self.path.parent} is not a directory; create it, or name another path for SQLite")
        try:
            self._writer = await self._connect()
            self._reader = await self._connect()
            await self._patiently(lambda: _fetch(self._open_reader, "PRAGMA query_only = ON"))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Finish what is being written and close the connections."""
        while self._working:
            await asyncio.wait(self._working)
        connections, self._reader, self._writer = (self._reader, self._writer), None, None
        for connection in connections:
            if connection is not None:
                await connection.close()

    async def read(self, sql: str, parameters: Parameters = ()) -> Rows:
        """The rows of one statement, all of the same moment."""
        return await self._patiently(lambda: _fetch(self._open_reader, sql, parameters))

    async def write(self, work: Callable[[aiosqlite.Connection], Awaitable[T]]) -> T:
        """Run ``work`` in a transaction that no other writer shares; repeated as a whole while the file is locked.

        Raises:
            StoreUnavailable: The file stayed locked, or could not be reached.
            StoreError: SQLite refused a value for good.
        """
        return await self._to_its_end(self._write(work))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        """A transaction on a connection of its own. It keeps every other writer waiting, so be quick."""
        opening = asyncio.create_task(self._begin_own())
        try:
            connection = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_discard)
            raise
        try:
            yield connection
        except BaseException as exc:
            await self._to_its_end(_end(connection, "ROLLBACK"))
            if is_transient(exc):
                raise StoreUnavailable(f"the transaction was lost ({exc})") from exc
            raise
        try:
            await self._to_its_end(_end(connection, "COMMIT"))
        except sqlite3.Error as exc:
            raise translated(exc, self.path) from exc

    async def migrate(self) -> None:
        """Make what is missing, in one transaction."""

        async def apply(connection: aiosqlite.Connection) -> None:
            for statement in STATEMENTS:
                await connection.execute_fetchall(statement)
            await self._versions(lambda sql: _fetch(connection, sql))
            for table, known in VERSION_TABLES.items():
                insert = f"INSERT OR IGNORE INTO {table} (version, applied_at) VALUES (?, ?)"
                await connection.execute_fetchall(insert, (known, to_text(self.clock.now())))

        await self.write(apply)

    async def check(self) -> None:
        """Verify that the schema is the one this code needs. Never writes."""
        if await self._versions(self.read) != VERSION_TABLES:
            raise SchemaError(f"{self.path} is not set up for this version; run: tenxgraph-temporal setup")

    async def _versions(self, read: Callable[[str], Awaitable[Rows]]) -> dict[str, int]:
        found: dict[str, int] = {}
        for table, known in VERSION_TABLES.items():
            rows = await read(f"SELECT coalesce(max(version), 0) FROM {table}")
            found[table] = rows[0][0]
            if found[table] > known:
                raise SchemaError(
                    f"{table} in {self.path} is at version {found[table]}, newer than the {known} that this code "
                    "knows; upgrade tenxgraph-temporal"
                )
        return found

    async def _write(self, work: Callable[[aiosqlite.Connection], Awaitable[T]]) -> T:
        async def attempt() -> T:
            connection = self._open_writer
            await connection.execute_fetchall("BEGIN IMMEDIATE")
            try:
                result = await work(connection)
                await connection.execute_fetchall("COMMIT")
            finally:
                if connection.in_transaction:
                    await connection.execute_fetchall("ROLLBACK")
            return result

        try:
            async with asyncio.timeout(self._retry_timeout):
                await self._write_lock.acquire()
        except TimeoutError:
            raise StoreUnavailable(f"{self.path} was busy for {self._retry_timeout:g} s; try again") from None
        try:
            return await self._patiently(attempt)
        finally:
            self._write_lock.release()

    async def _begin_own(self) -> aiosqlite.Connection:
        connection = await self._connect()
        try:
            await self._patiently(lambda: _fetch(connection, "BEGIN IMMEDIATE"))
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _connect(self) -> aiosqlite.Connection:
        connection = await self._patiently(
            lambda: aiosqlite.connect(self.path, timeout=min(_BUSY_TIMEOUT, self._retry_timeout), isolation_level=None)
        )
        try:
            connection.row_factory = sqlite3.Row
            mode = await self._patiently(lambda: _fetch(connection, "PRAGMA journal_mode = WAL"))
            if mode[0][0] != "wal":
                raise SettingsError(f"{self.path} cannot be in WAL mode; use a file on a local disk")
            for pragma in ("synchronous = FULL", "foreign_keys = ON"):
                await connection.execute_fetchall(f"PRAGMA {pragma}")
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """``attempt``, repeated while somebody else has the lock that it needs, and in terms of our errors."""
        deadline = asyncio.get_running_loop().time() + self._retry_timeout
        pause = 0.005
        while True:
            try:
                return await attempt()
            except (sqlite3.Error, UnicodeError, OverflowError) as exc:
                if not is_busy(exc) or asyncio.get_running_loop().time() + pause > deadline:
                    raise translated(exc, self.path) from exc
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 0.2)

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._worked)
        return await asyncio.shield(task)

    def _worked(self, task: asyncio.Task[Any]) -> None:
        self._working.discard(task)
        if not task.cancelled():
            task.exception()  # it is the caller's; seen here in case that the caller is gone

    @property
    def _open_reader(self) -> aiosqlite.Connection:
        return self._opened(self._reader)

    @property
    def _open_writer(self) -> aiosqlite.Connection:
        return self._opened(self._writer)

    def _opened(self, connection: aiosqlite.Connection | None) -> aiosqlite.Connection:
        if connection is None:
            raise StoreUnavailable(f"the store on {self.path} is closed; open a new one")
        return connection


async def _fetch(connection: aiosqlite.Connection, sql: str, parameters: Parameters = ()) -> Rows:
    return list(await connection.execute_fetchall(sql, parameters))


async def _end(connection: aiosqlite.Connection, statement: str) -> None:
    try:
        if connection.in_transaction:
            await connection.execute_fetchall(statement)
    finally:
        await connection.close()


def _discard(opening: asyncio.Task[aiosqlite.Connection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().stop()
