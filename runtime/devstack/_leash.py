"""Keeps one server on a leash: the server ends when the process that wanted it ends.

Run by path, ``python -I -S _leash.py SPEC``, with the standard library only, so that it starts in
about 20 ms and imports nothing of ours. It must not die with its parent, because somebody has to
clean up after a SIGKILL; so it runs in a session of its own and takes orders through its stdin:

    b"s"  stop the server, keep its data     b"q"  stop it for good: remove temporary data
    b"k"  SIGKILL it, keep its data          EOF   the parent ended: the same as b"q"

It prints the server's pid, and ends when the server has ended, with the server's exit code.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ORPHAN_CHECK_SECONDS = 0.5
REAP_SECONDS = 2.0


class Leash:
    """One server and the pipe that its life hangs on."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.parent_pid: int = spec["parent_pid"]
        self.for_good = False
        # Handlers rather than SIG_IGN: an ignored signal would stay ignored in the server.
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.wake_read = wake_read
        self.pid = os.getpid()
        self.prctl = _prctl()
        if self.prctl is not None:
            # The orphans of a killed server (Postgres backends) become ours, so that we can wait
            # for them: only then can the server start again on the same data.
            self.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.server = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        spec = self.spec
        account: dict[str, Any] = {}
        if spec["uid"] is not None:
            account = {"user": spec["uid"], "group": spec["gid"], "extra_groups": []}
            # Sharing its real user id lets us signal the server in a container without CAP_KILL.
            os.setreuid(spec["uid"], -1)
        with open(spec["log"], "ab") as log:  # opened here: the account may not reach it
            return subprocess.Popen(
                spec["command"],
                cwd=spec["cwd"],  # entered before the account changes
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=self._in_server if self.prctl is not None else None,
                **account,
            )

    def _in_server(self) -> None:
        """Between fork and exec, after the change of account (which would reset the setting)."""
        assert self.prctl is not None
        self.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self.pid:
            os._exit(1)  # the leash died before the setting counted

    def run(self) -> int:
        """Wait for an order or the server's end, and carry it out."""
        order = self._next_order()
        if order == b"k":
            self._signal_group(signal.SIGKILL)
        elif self.server.poll() is None:
            self.server.send_signal(self.spec["stop_signal"])
        try:
            self.server.wait(self.spec["grace_seconds"])
        except subprocess.TimeoutExpired:
            self._signal_group(signal.SIGKILL)
        code = self.server.wait()
        self._reap_orphans()
        if self.for_good or self._is_orphan() or self._dismissed():
            self._remove()
        return code if code >= 0 else 128 - code

    def _next_order(self) -> bytes:
        while self.server.poll() is None:
            readable, _, _ = select.select([0, self.wake_read], [], [], ORPHAN_CHECK_SECONDS)
            if self.wake_read in readable:
                os.read(self.wake_read, 512)
            if 0 in readable:
                order = os.read(0, 1)
                self.for_good = order in (b"", b"q")
                return order
            # A fork of the parent without exec may hold the pipe open after the parent's death.
            if self._is_orphan():
                self.for_good = True
                return b""
        return b""

    def _is_orphan(self) -> bool:
        return os.getppid() != self.parent_pid

    @staticmethod
    def _dismissed() -> bool:
        """Whether the parent let go of us while we carried out an earlier order."""
        readable, _, _ = select.select([0], [], [], 0)
        return bool(readable) and os.read(0, 1) in (b"", b"q")

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.server.pid, number)

    def _reap_orphans(self) -> None:
        self._signal_group(signal.SIGKILL)
        deadline = time.monotonic() + REAP_SECONDS
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            except ChildProcessError:
                return
            if time.monotonic() > deadline:
                children = Path(f"/proc/self/task/{os.getpid()}/children")
                for pid in children.read_text().split() if children.exists() else []:
                    os.kill(int(pid), signal.SIGKILL)
                return
            time.sleep(0.005)

    def _remove(self) -> None:
        for path in self.spec["remove"]:
            remove_tree(path)
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(path))  # the last server of the stack succeeds


def remove_tree(path: str) -> None:
    """Remove a directory, also one of another account's, and leave what can't be removed."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.exists(path) and os.geteuid() == 0:
        # Root without CAP_DAC_OVERRIDE may not look into it, but may take it over.
        with contextlib.suppress(OSError):
            _take_over(path)
        shutil.rmtree(path, ignore_errors=True)


def _take_over(directory: str) -> None:
    os.chown(directory, 0, 0)
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _take_over(entry.path)


def _prctl() -> Any:
    """Linux's ``prctl``, or None: elsewhere only the pipe holds the server."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None


def main() -> int:
    """Run the server that ``sys.argv[1]`` describes until it ends."""
    spec = json.loads(sys.argv[1])
    try:
        leash = Leash(spec)
    except (OSError, subprocess.SubprocessError) as exc:
        with open(spec["log"], "a", encoding="utf-8") as log:
            log.write(f"cannot run {spec['command'][0]}: {exc}\n")
        return 127
    with contextlib.suppress(OSError):  # the parent is gone already: the first order is EOF
        os.write(1, f"{leash.server.pid}\n".encode())
    return leash.run()


if __name__ == "__main__":
    sys.exit(main())
