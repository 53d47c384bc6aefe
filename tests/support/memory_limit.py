"""A real limit on a process's memory: the kernel kills what exceeds it, as it does in a container."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")


class MemoryLimit:
    """A cgroup below that of this process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def hold(self, pid: int) -> None:
        """Put a process under the limit, with all that it takes from now on."""
        (self._path / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """Processes that the kernel has killed for exceeding it."""
        for name in ("memory.events", "memory.oom_control"):
            if (self._path / name).exists():
                counts = dict(line.split() for line in (self._path / name).read_text().splitlines())
                return int(counts["oom_kill"])
        raise FileNotFoundError(f"{self._path} counts no kills")


@contextmanager
def memory_limit(size: int) -> Iterator[MemoryLimit]:
    """A limit of ``size`` bytes; skips the test, with the reason, where this process may not set one."""
    try:
        parent, setting = _own_cgroup()
        path = parent / f"tenxgraph-{uuid.uuid4().hex[:12]}"
        path.mkdir()
    except (OSError, LookupError) as exc:
        pytest.skip(f"this process cannot make a memory cgroup: {exc}")
    try:
        try:
            (path / setting).write_text(str(size))
            limit = MemoryLimit(path)
            _ = limit.kills
        except (OSError, KeyError) as exc:
            pytest.skip(f"this process cannot limit memory: {exc}")
        for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
            if (path / swap).exists():
                (path / swap).write_text("0" if swap == "memory.swap.max" else str(size))
        yield limit
    finally:
        path.rmdir()


def _own_cgroup() -> tuple[Path, str]:
    """The cgroup of this process, and the file of a limit; version 1 has a hierarchy of its own for memory."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return _ROOT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
        if controllers == "" and "memory" in _controllers(_ROOT / path.lstrip("/")):
            return _ROOT / path.lstrip("/"), "memory.max"
    raise LookupError("no memory controller is delegated to it")


def _controllers(path: Path) -> list[str]:
    file = path / "cgroup.subtree_control"
    return file.read_text().split() if file.exists() else []
