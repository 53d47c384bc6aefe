"""The parent's end of a leash: start a command that can't outlive this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from ._account import Account

POLL_SECONDS = 0.02
STOP_GRACE = timedelta(seconds=5)
"""What a server gets between the polite signal and SIGKILL."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """What to run and under which conditions."""

    arguments: Sequence[str]
    cwd: Path
    log_path: Path
    stop_signal: int = signal.SIGTERM
    account: Account | None = None
    """None: the account of this process."""
    remove: Sequence[Path] = ()
    """Directories the leash removes when this process ends without having done so."""
    lock_fd: int | None = None
    """Held open by the leash: the directory's lock outlives this process until the server has ended."""
    env: Mapping[str, str] = field(default_factory=dict)


class LeashedProcess:
    """A running command. Polled, not awaited, so that it belongs to no particular event loop."""

    def __init__(self, command: Command) -> None:
        spec = {
            "command": list(command.arguments),
            "cwd": str(command.cwd),
            "log": str(command.log_path),
            "uid": command.account.uid if command.account else None,
            "gid": command.account.gid if command.account else None,
            "stop_signal": int(command.stop_signal),
            "grace_seconds": STOP_GRACE.total_seconds(),
            "remove": [str(path) for path in command.remove],
            "parent_pid": os.getpid(),
        }
        self.pid: int | None = None
        self._output = b""
        # -S: the leash needs no site-packages, and starts in half the time without them.
        self._leash = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("_leash.py")), json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            # Inherited by the server. Not in the arguments: everybody may read those.
            env=_environment(command.env),
            pass_fds=() if command.lock_fd is None else (command.lock_fd,),
        )
        assert self._leash.stdout is not None
        os.set_blocking(self._leash.stdout.fileno(), False)

    @property
    def running(self) -> bool:
        """Whether the command still runs; also notices that it has started or ended."""
        assert self._leash.stdout is not None
        if self.pid is None and not self._leash.stdout.closed:
            with contextlib.suppress(BlockingIOError):
                self._output += os.read(self._leash.stdout.fileno(), 32)
            if self._output.endswith(b"\n"):
                self.pid = int(self._output)
        if self._leash.poll() is None:
            return True
        self.release()
        self._leash.stdout.close()
        return False

    @property
    def returncode(self) -> int | None:
        """The command's exit code, 128 plus the number of the signal that ended it, None while it runs."""
        return self._leash.returncode

    def order(self, letter: bytes) -> None:
        """Tell the leash to stop (``b"s"``) or kill (``b"k"``) the command; its data stay."""
        assert self._leash.stdin is not None
        # BrokenPipeError: it has ended by itself. ValueError: released before.
        with contextlib.suppress(BrokenPipeError, ValueError):
            os.write(self._leash.stdin.fileno(), letter)

    def release(self) -> None:
        """Have the command stopped for good and its temporary data removed, without waiting."""
        assert self._leash.stdin is not None
        self.order(b"q")  # closing alone is not enough if somebody forked us and holds a copy of the pipe
        with contextlib.suppress(BrokenPipeError):
            self._leash.stdin.close()

    async def ended(self, timeout: timedelta | None = None) -> None:
        """Wait until the command has ended; past ``timeout`` kill the leash, and the command with it."""
        deadline = time.monotonic() + timeout.total_seconds() if timeout else None
        while self.running:
            if deadline is not None and time.monotonic() > deadline:
                self._leash.kill()
                if self.pid is not None:  # where the leash's death does not reach it (macOS)
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(self.pid, signal.SIGKILL)
                deadline = None
            await asyncio.sleep(POLL_SECONDS)


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Ours without the variables that would redirect the servers, and with one time zone and locale."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "TEMPORAL_"))}
    return {**kept, "TZ": "UTC", "LC_ALL": "C", **extra}
