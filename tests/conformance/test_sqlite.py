"""The conformance suite on SQLite, and what is SQLite's own: one file, several processes."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tenxgraph_temporal.runtime.errors import SchemaError, SettingsError, StoreError, StoreUnavailable
from tenxgraph_temporal.runtime.storage.contract import Store
from tenxgraph_temporal.runtime.storage.sqlite import SqliteStore
from tenxgraph_temporal.runtime.testing import StoreConformance
from tenxgraph_temporal.runtime.testing._samples import THREAD, commit, entry, origin, state_of

WRITER = Path(__file__).with_name("sqlite_writer.py")


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    async def open_store(self, tmp_path: Path) -> AsyncIterator[Any]:
        opened: list[SqliteStore] = []

        async def open_store(**options: Any) -> Store:
            store = await SqliteStore.from_url(f"sqlite:///{tmp_path}/db", **options)
            opened.append(store)
            await store.setup()
            return store

        yield open_store
        for store in opened:
            await store.close()

    @pytest.fixture
    async def store(self, open_store: Any) -> Any:
        return await open_store()

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "db"

    async def test_four_processes_count_to_100(self, store: SqliteStore, path: Path) -> None:
        await commit(store, 0, {"count": 0})
        writers = [await _process("count", path, "25") for _ in range(4)]
        assert [await writer.wait() for writer in writers] == [0] * 4
        assert await state_of(store) == {"count": 100}
        assert [v.version for v in await store.list_versions(THREAD, None)] == list(range(101, 81, -1))

    async def test_a_process_that_dies_in_a_transaction_leaves_nothing(self, store: SqliteStore, path: Path) -> None:
        await commit(store, 0)
        assert await (await _process("die", path)).wait() == 9
        assert await store.lookup(THREAD, ["k"]) == {}
        assert await store.record(THREAD, entry("k", 2)) is None

    async def test_a_tools_own_statements_commit_with_its_record(self, store: SqliteStore, path: Path) -> None:
        await commit(store, 0)
        async with store.transaction() as transaction:
            await transaction.connection.execute("CREATE TABLE sent (what TEXT)")
            await transaction.connection.execute("INSERT INTO sent VALUES ('mail')")
            await transaction.record(THREAD, entry("k"))

        async def fail() -> None:
            async with store.transaction() as transaction:
                await transaction.connection.execute("INSERT INTO sent VALUES ('again')")
                await transaction.connection.execute("INSERT INTO threads (thread_id) VALUES (NULL)")

        with pytest.raises(sqlite3.IntegrityError):
            await fail()
        assert [tuple(row) for row in await store._db.read("SELECT what FROM sent")] == [("mail",)]

    async def test_a_lock_that_stays_is_reported(self, store: SqliteStore, path: Path) -> None:
        await commit(store, 0)
        hasty = await SqliteStore.open(path, retry_timeout=0.2)
        try:
            async with store.transaction() as transaction:
                await transaction.record(THREAD, entry("k", "slow"))
                for work in (hasty.record(THREAD, entry("k")), commit(hasty, 1), hasty.setup()):
                    with pytest.raises(StoreUnavailable):
                        await work
                with pytest.raises(StoreUnavailable):
                    async with hasty.transaction():
                        pass
                assert await hasty.lookup(THREAD, ["k"]) == {}, "readers do not wait"
            assert await hasty.record(THREAD, entry("k")) == entry("k", "slow").envelope
        finally:
            await hasty.close()

    async def test_rows_look_as_10xgraphs_do(self, store: SqliteStore) -> None:
        await commit(store, 0, {"n": 1}, by=origin("c1", position=[1], config={"k": 1}), meta={"mine": 1})
        (row,) = await store._db.read("SELECT state_data, meta FROM states")
        assert row["state_data"] == '{"n":1}'
        assert row["meta"] == (
            '{"mine":1,"tenxgraph_temporal":{"run_id":"run-1","commit_id":"c1","position":[1],"config":{"k":1}}}'
        )

    async def test_a_thread_that_has_no_state_yet_starts_at_0(self, store: SqliteStore) -> None:
        await store._db.write(
            lambda connection: connection.execute_fetchall(
                "INSERT INTO threads (thread_id, user_id, created_at, updated_at) VALUES ('early', 'user-1', "
                "'2026-01-01T00:00:00.000000+00:00', '2026-01-01T00:00:00.000000+00:00')"
            )
        )
        head = await store.load_head("early", "user-1")
        assert head is not None
        assert (head.version, head.state_id, head.fields, head.origin) == (0, 0, None, None)
        assert (await commit(store, 0, thread_id="early")).version == 1

    async def test_a_file_without_tables_asks_for_setup(self, tmp_path: Path) -> None:
        store = await SqliteStore.open(tmp_path / "empty")
        try:
            with pytest.raises(SchemaError, match="setup"):
                await store.check()
            with pytest.raises(SchemaError, match="setup"):
                await store.load_head(THREAD, None)
            with pytest.raises(SchemaError, match="setup"):
                await commit(store, 0)
        finally:
            await store.close()

    @pytest.mark.parametrize("table", ["schema_version", "tenxgraph_temporal_schema"])
    async def test_a_newer_schema_is_left_alone(self, store: SqliteStore, path: Path, table: str) -> None:
        await store._db.write(
            lambda connection: connection.execute_fetchall(f"INSERT INTO {table} VALUES (99, 'later')")
        )
        for work in (store.setup(), store.check()):
            with pytest.raises(SchemaError, match="99"):
                await work

    async def test_ten_open_a_new_file_at_once(self, tmp_path: Path) -> None:
        stores = await asyncio.gather(*(SqliteStore.open(tmp_path / "new") for _ in range(10)))
        await asyncio.gather(*(store.setup() for store in stores))
        await asyncio.gather(*(store.close() for store in stores))

    async def test_a_closed_store_says_so(self, store: SqliteStore) -> None:
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.load_head(THREAD, None)
        with pytest.raises(StoreUnavailable, match="closed"):
            await commit(store, 0)

    @pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///no/such/dir/db"])
    async def test_a_url_that_names_no_file(self, url: str) -> None:
        with pytest.raises(SettingsError):
            await SqliteStore.from_url(url)

    async def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("not a database " * 100)
        with pytest.raises(StoreError, match="not a database"):
            await SqliteStore.open(tmp_path / "text")


async def _process(*arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, str(WRITER), *map(str, arguments))
