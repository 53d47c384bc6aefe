"""Worker processes, as the demo and the tests start and kill them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path


class Process:
    """A child process whose output is read line by line."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path | None) -> None:
        self._process = process
        self._lines: list[str] = []
        self._changed = asyncio.Condition()
        self._log = log
        self._reader = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    @property
    def output(self) -> str:
        """All output so far."""
        return "".join(self._lines)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            line = raw.decode(errors="replace")
            if self._log is not None:
                with self._log.open("a") as file:
                    file.write(line)
            async with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        async with self._changed:
            self._changed.notify_all()

    async def until(self, text: str, *, timeout: float = 60) -> str:
        """The first line that contains ``text``.

        Raises:
            RuntimeError: The process ended, or said nothing like it in time; with its output.
        """

        def found() -> str | None:
            return next((line for line in self._lines if text in line), None)

        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: found() is not None or self._reader.done())
        except TimeoutError:
            raise RuntimeError(f"no {text!r} within {timeout:g} s; the process said:\n{self.output}") from None
        line = found()
        if line is None:
            raise RuntimeError(f"the process ended without {text!r}; it said:\n{self.output}")
        return line.strip()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.running:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.signal(signal.SIGKILL)
        await self.wait()

    async def terminate(self) -> int:
        """SIGTERM, and wait for the end; the exit code."""
        self.signal(signal.SIGTERM)
        return await self.wait()

    async def wait(self) -> int:
        """Wait for the end; the exit code."""
        code = await self._process.wait()
        await self._reader
        return code


@asynccontextmanager
async def python_process(
    *arguments: str, env: Mapping[str, str] | None = None, log: Path | None = None
) -> AsyncIterator[Process]:
    """``python -m <arguments>``, killed when the block ends."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *arguments,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=16 * 1024 * 1024,
    )
    process = Process(child, log)
    try:
        yield process
    finally:
        process.signal(signal.SIGCONT)
        await process.kill()


@asynccontextmanager
async def worker_process(*graphs: str, env: Mapping[str, str], log: Path | None = None) -> AsyncIterator[Process]:
    """A worker that is ready to serve ``graphs``."""
    async with python_process("tenxgraph_temporal.worker", *graphs, env=env, log=log) as process:
        await process.until("worker ready")
        yield process


@asynccontextmanager
async def outside_world() -> AsyncIterator[str]:
    """The address of a running ``outside_world``."""
    async with python_process("tenxgraph_temporal.examples.outside_world") as process:
        yield await process.until("http://")
