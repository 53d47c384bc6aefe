"""The development stack: real servers that start anywhere and never stay behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import asyncpg
import pytest
import pytest_asyncio
import redis.asyncio
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from tenxgraph_temporal.runtime.devstack import DevStack, DevStackError, _layout, _postgres, dev_stack

DEADLINE_SECONDS = 10.0
PYTHONPATH = os.pathsep.join(path for path in sys.path if path)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes accounts")

PARENT = """
import asyncio, json, os, signal, sys, time
from tenxgraph_temporal.runtime.devstack import dev_stack

async def main():
    async with dev_stack() as stack:
        import asyncpg
        connection = await asyncpg.connect(stack.postgres_dsn)
        answer = await connection.fetchval("select 41 + 1")
        await connection.close()
        if "--fork" in sys.argv and os.fork() == 0:
            # Like a pool of forked workers: it holds copies of all pipes, and outlives its parent.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            time.sleep(60)
            os._exit(0)
        pids = {name: server.pid for name, server in stack.servers.items()}
        print(json.dumps({"pids": pids, "directory": str(stack.directory), "answer": answer}), flush=True)
        if "--once" not in sys.argv:
            await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[DevStack]:
    async with dev_stack() as started:
        yield started


async def test_all_three_answer_as_soon_as_the_stack_has_started(stack: DevStack) -> None:
    client = await Client.connect(stack.temporal_address)
    thread = SearchAttributeKey.for_keyword("TenxThreadId")
    handle = await client.start_workflow(
        "nobody-runs-this",
        id="w1",
        task_queue="none",
        search_attributes=TypedSearchAttributes([SearchAttributePair(thread, "t1")]),
    )
    description = await handle.describe()
    assert description.typed_search_attributes[thread] == "t1", description
    await handle.terminate()

    page = await asyncio.to_thread(_http_status, stack.ui_url)
    assert page == 200, stack.ui_url

    assert await _sql(stack, "show server_encoding") == "UTF8"
    async with redis.asyncio.from_url(stack.redis_url) as cache:
        assert await cache.ping()


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("name", ["postgres", "redis"])
async def test_restart_keeps_port_and_data(stack: DevStack, name: str, how: str) -> None:
    server = stack.servers[name]
    key = f"{name}_{how}"
    await _write(stack, name, key)
    pid_before, port_before = server.pid, server.port

    await getattr(server, how)()
    assert not server.running
    assert server.pid is None
    assert pid_before is not None
    assert not _exists(pid_before), f"{name} {pid_before} still runs"
    await server.start()

    assert server.pid not in (None, pid_before)
    assert server.port == port_before
    assert await _read(stack, name, key) == "kept"


async def test_restart_of_temporal_keeps_workflows_when_asked_to() -> None:
    async with dev_stack(postgres=False, redis=False, keep_workflows=True) as stack:
        client = await Client.connect(stack.temporal_address)
        await client.start_workflow("nobody-runs-this", id="w1", task_queue="none")
        await stack.temporal.kill()
        await stack.temporal.start()
        client = await Client.connect(stack.temporal_address)
        description = await client.get_workflow_handle("w1").describe()
        assert description.id == "w1"
        with pytest.raises(DevStackError, match=r"redis=True"):
            _ = stack.redis_url


async def test_two_stacks_side_by_side(stack: DevStack) -> None:
    async with dev_stack(temporal=False) as one, dev_stack(temporal=False) as two:
        stacks = (stack, one, two)
        ports = {server.port for each in stacks for server in each.servers.values()}
        assert len(ports) == 7, ports
        for number, each in enumerate(stacks):
            await _sql(each, f"create table whose_{number} (n int)")
        found = [await _sql(each, "select count(*) from pg_tables where tablename like 'whose%'") for each in stacks]
        assert found == [1, 1, 1]


async def test_directory_keeps_everything_for_the_next_start(tmp_path: Path) -> None:
    """As root this also covers data below a directory that Postgres's account can't enter."""
    directory = tmp_path / "private"
    async with dev_stack(directory) as stack:
        client = await Client.connect(stack.temporal_address)
        await client.start_workflow("nobody-runs-this", id="w1", task_queue="none")
        for name in ("postgres", "redis"):
            await _write(stack, name, "persisted")
        assert await _sql(stack, "show fsync") == "on"
    async with dev_stack(directory) as stack:
        client = await Client.connect(stack.temporal_address)
        description = await client.get_workflow_handle("w1").describe()
        assert description.id == "w1"
        for name in ("postgres", "redis"):
            assert await _read(stack, name, "persisted") == "kept", name


async def test_directory_belongs_to_one_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with dev_stack(tmp_path, temporal=False, postgres=False):
        monkeypatch.setattr(_layout, "LOCK_TIMEOUT", timedelta(0))
        with pytest.raises(DevStackError, match="in use by another development stack"):
            async with dev_stack(tmp_path, temporal=False, postgres=False):
                pass


@pytest.mark.parametrize("forked", [[], ["--fork"]], ids=["alone", "with-forked-child"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
async def test_nothing_stays_behind_when_the_parent_ends(sent: signal.Signals, forked: list[str]) -> None:
    with _parent(*forked) as (parent, started):
        # SIGINT as the terminal sends it: to the whole process group.
        if sent == signal.SIGINT:
            os.killpg(parent.pid, sent)
        else:
            parent.send_signal(sent)
        await _until(lambda: not any(map(_exists, started["pids"].values())), f"servers {started['pids']} remain")
        await _until(lambda: not Path(started["directory"]).exists(), f"{started['directory']} remains")
        await _until(lambda: parent.poll() is not None, "the parent hangs")


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
async def test_server_ends_with_its_killed_supervisor() -> None:
    async with dev_stack(temporal=False) as stack:
        pids = [server.pid for server in stack.servers.values() if server.pid is not None]
        assert len(pids) == 2
        for pid in pids:
            os.kill(_parent_pid(pid), signal.SIGKILL)
        await _until(lambda: not any(map(_exists, pids)), f"servers {pids} remain")
        await _until(lambda: not any(server.running for server in stack.servers.values()), "still 'running'")
        await stack.postgres.start()
        assert await _sql(stack, "select 1") == 1


async def test_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    async def hold() -> None:
        async with dev_stack(tmp_path):
            await asyncio.Event().wait()

    for moment in ("postgres/data.new/PG_VERSION", "postgres/data/postmaster.pid"):
        task = asyncio.create_task(hold())
        await _until((tmp_path / moment).exists, f"never saw {moment}")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _until(lambda: _lockable(tmp_path / "lock"), "a supervisor still holds the directory")


async def test_failed_start_names_server_and_log(tmp_path: Path) -> None:
    with pytest.raises(DevStackError, match=r"(?s)temporal on port \d+ ended with code 1.*--no-such-flag"):
        async with dev_stack(tmp_path, temporal_args=["--no-such-flag"]):
            pass
    assert _lockable(tmp_path / "lock")


@pytest.mark.parametrize("option", ["temporal_port", "ui_port"])
async def test_taken_port_is_named(option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DevStackError, match=rf"(?s){port}.*choose another port"):
            async with dev_stack(postgres=False, redis=False, **{option: port}):
                pass


async def test_missing_wheel_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_postgres, "find_spec", lambda _name: None)
    with pytest.raises(DevStackError, match=r"pip install 'tenxgraph-temporal\[dev\]'"):
        async with dev_stack():
            pass


@needs_root
async def test_root_runs_postgres_from_a_private_virtualenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = _private_installation(tmp_path)
    monkeypatch.setattr(_postgres, "_installation", lambda: private)
    async with dev_stack(temporal=False, redis=False) as stack:
        assert await _sql(stack, "select 1") == 1
        program = Path(await _sql(stack, "select setting from pg_config where name = 'BINDIR'"))
        assert not program.is_relative_to(tmp_path), program
    await _until(lambda: not program.exists(), f"the copy in {program} remains")


@needs_root
async def test_ordinary_user_needs_no_help() -> None:
    nobody = pwd.getpwnam("nobody")
    account: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    problem = _why_no_import(account)
    if problem:
        pytest.skip(f"the account nobody can't use this virtualenv: {problem}")
    with _parent("--once", cwd="/", **account) as (parent, started):
        assert started["answer"] == 42
        await _until(lambda: parent.poll() is not None, "the parent hangs")
        assert parent.returncode == 0, _rest(parent.stderr)
        assert not any(map(_exists, started["pids"].values()))
        await _until(lambda: not Path(started["directory"]).exists(), f"{started['directory']} remains")


# -- helpers


@contextlib.contextmanager
def _parent(*arguments: str, **options: Any) -> Any:
    """A process with a stack of its own, and what it says about it."""
    command = [sys.executable, "-c", PARENT, *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        start_new_session=True,
        **options,
    ) as parent:
        assert parent.stdout is not None
        try:
            line = parent.stdout.readline()
            if not line:
                pytest.fail(f"the parent did not start: {_rest(parent.stderr)}")
            yield parent, json.loads(line)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


def _private_installation(parent: Path) -> Path:
    """A copy of the Postgres wheel that only root can enter."""
    package = _postgres._installation().parent
    parent.chmod(0o700)
    shutil.copytree(package, parent / package.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, parent / libraries.name, symlinks=True)
    return parent / package.name / "pginstall"


def _why_no_import(account: dict[str, Any]) -> str | None:
    command = [sys.executable, "-c", "import tenxgraph_temporal.runtime.devstack"]
    try:
        subprocess.run(command, check=True, capture_output=True, env=_environment(), cwd="/", **account)
    except subprocess.CalledProcessError as exc:
        return str(exc.stderr.decode().strip().rpartition("\n")[2])
    except OSError as exc:
        return str(exc)
    return None


def _rest(stream: IO[bytes] | None) -> str:
    return stream.read().decode() if stream else ""


def _environment() -> dict[str, str]:
    # HOME: asyncpg looks for certificates there, and root's home is closed to others.
    return {**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONDONTWRITEBYTECODE": "1", "HOME": tempfile.gettempdir()}


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _parent_pid(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _lockable(path: Path) -> bool:
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


async def _until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, otherwise
        await asyncio.sleep(0.02)


def _http_status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=5) as response:
        return int(response.status)


async def _sql(stack: DevStack, statement: str) -> Any:
    connection = await asyncpg.connect(stack.postgres_dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def _write(stack: DevStack, name: str, key: str) -> None:
    if name == "postgres":
        await _sql(stack, f"create table {key} as select 'kept' as value")
        return
    async with redis.asyncio.from_url(stack.redis_url) as cache:
        await cache.set(key, "kept")


async def _read(stack: DevStack, name: str, key: str) -> str:
    if name == "postgres":
        return str(await _sql(stack, f"select value from {key}"))
    async with redis.asyncio.from_url(stack.redis_url, decode_responses=True) as cache:
        return str(await cache.get(key))
