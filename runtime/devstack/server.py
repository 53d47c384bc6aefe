"""One server of the stack: start, stop and kill it as often as a test likes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from ._process import POLL_SECONDS, STOP_GRACE, Command, LeashedProcess
from ._ready import listens
from .errors import DevStackError, PortTakenError

START_TIMEOUT = timedelta(seconds=30)
PROBE_TIMEOUT = timedelta(seconds=2)
LOG_TAIL_LINES = 15
LOG_LINE_CHARACTERS = 400


class Server:
    """A server with a fixed port and fixed data. Not for two tasks at once.

    Args:
        name: ``temporal``, ``postgres`` or ``redis``; names the server in errors.
        port: Where it listens on 127.0.0.1, the same over every restart.
        command: How to run it.
        is_ready: Whether the server with this pid, and not a stranger on its port, answers requests.
    """

    def __init__(self, name: str, *, port: int, command: Command, is_ready: Callable[[int], Awaitable[bool]]) -> None:
        self.name = name
        self.port = port
        self._command = command
        self._is_ready = is_ready
        self._process: LeashedProcess | None = None
        self._last_refusal = "no answer"

    def __repr__(self) -> str:
        return f"Server({self.name!r}, port={self.port}, pid={self.pid})"

    @property
    def log_path(self) -> Path:
        """Its output, over all of its starts."""
        return self._command.log_path

    @property
    def running(self) -> bool:
        """Whether its process exists."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int | None:
        """The server's own process, not its supervisor's; None while it is not running."""
        return self._process.pid if self._process is not None and self.running else None

    async def start(self, *, timeout: timedelta = START_TIMEOUT) -> None:
        """Start it and wait until it answers; does nothing if it is running.

        Raises:
            DevStackError: It ended or did not answer in time; the message holds its last log lines.
        """
        if self.running:
            return
        if await listens(self.port):
            raise PortTakenError(
                f"{self.name} can't start: port {self.port} of 127.0.0.1 is in use; "
                "stop what listens there, or choose another port"
            )
        log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._process = LeashedProcess(self._command)
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            while not await self._answers():
                if not self.running:
                    raise self._failure(log_offset, f"ended with code {self._process.returncode}")
                if time.monotonic() > deadline:
                    raise self._failure(log_offset, f"did not answer within {timeout} ({self._last_refusal})")
                await asyncio.sleep(POLL_SECONDS)
        except BaseException:
            self._process.order(b"k")  # takes effect even if we are cancelled while waiting for it
            await self._process.ended(STOP_GRACE)
            raise

    async def stop(self) -> None:
        """Stop it politely, within about 5 s, and keep its data. Postgres: fast shutdown."""
        await self._end(b"s")

    async def kill(self) -> None:
        """SIGKILL it, as a crash would, and wait until it is gone. Its data stay."""
        await self._end(b"k")

    def release(self) -> None:
        """Let go of it for good, without waiting: it stops, and data meant to be temporary go."""
        if self._process is not None:
            self._process.release()

    async def released(self) -> None:
        """Wait until a released server has ended, at most about 8 s."""
        if self._process is not None:
            await self._process.ended(STOP_GRACE + timedelta(seconds=3))

    async def _end(self, order: bytes) -> None:
        if self._process is not None:
            self._process.order(order)
            await self._process.ended(STOP_GRACE + timedelta(seconds=3))

    async def _answers(self) -> bool:
        pid = self.pid
        if pid is None:
            return False
        try:
            async with asyncio.timeout(PROBE_TIMEOUT.total_seconds()):
                return await self._is_ready(pid) and self.running
        except OSError as exc:  # includes TimeoutError; usually "not yet", and if not, the error shows it
            self._last_refusal = repr(exc)
            return False

    def _failure(self, log_offset: int, what: str) -> DevStackError:
        log = log_tail(self.log_path, offset=log_offset)
        message = f"{self.name} on port {self.port} {what}. Its last log lines ({self.log_path}):\n{log}"
        if "address already in use" in log.lower():
            return PortTakenError(f"{message}\nStop what listens there, or choose another port.")
        return DevStackError(message)


def log_tail(log_path: Path, *, offset: int = 0) -> str:
    """The last lines written after ``offset`` bytes, indented for an error message."""
    if not log_path.exists():
        return "    (no output)"
    with log_path.open("rb") as log:
        log.seek(offset)
        lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(f"    {line[:LOG_LINE_CHARACTERS]}" for line in lines[-LOG_TAIL_LINES:]) or "    (no output)"
