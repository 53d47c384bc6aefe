"""Where a stack keeps its files, who may use them, and which ports are free."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ._leash import remove_tree
from .errors import DevStackError

LOCK_TIMEOUT = timedelta(seconds=10)
"""Longer than a leash needs to end the servers of a stack that was killed."""

_handed_out: set[int] = set()
"""Ports of this process's stacks: between choosing a port and listening on it, bind(0) may repeat it."""


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens, and not one this process was given before."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in _handed_out:
            _handed_out.add(port)
            return port


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One directory per server, holding its data and its log."""

    root: Path
    persistent: bool
    lock_fd: int | None

    def of(self, server_name: str) -> Path:
        """The server's directory, created if need be."""
        directory = self.root / server_name
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory

    def removable(self, server_name: str) -> tuple[Path, ...]:
        """What the server's leash should remove if we can't."""
        return () if self.persistent else (self.root / server_name,)

    def close(self) -> None:
        """Remove temporary data, or give the directory free for the next stack."""
        if self.lock_fd is not None:
            os.close(self.lock_fd)
        if not self.persistent:
            remove_tree(str(self.root))


async def open_layout(directory: Path | None) -> Layout:
    """A locked persistent directory, or a temporary one.

    Raises:
        DevStackError: The directory can't be created, or is in use by another stack.
    """
    if directory is None:
        root = Path(tempfile.mkdtemp(prefix="tenxgraph-dev-"))
        return Layout(root=root, persistent=False, lock_fd=None)
    root = Path(os.path.abspath(directory))  # noqa: ASYNC240 - local and quick
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise DevStackError(f"can't keep data in {root}: {exc}; give a directory you may write to") from exc
    try:
        await _lock(lock_fd, root)
    except BaseException:
        os.close(lock_fd)
        raise
    return Layout(root=root, persistent=True, lock_fd=lock_fd)


async def _lock(lock_fd: int, root: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT.total_seconds()
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as exc:
            if time.monotonic() > deadline:
                raise DevStackError(
                    f"{root} is in use by another development stack; end that one, or give another directory"
                ) from exc
        await asyncio.sleep(0.05)
