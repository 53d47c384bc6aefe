"""Health over HTTP, for an orchestrator: ``/healthz`` (this process works) and ``/readyz`` (its servers answer)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

from .errors import SettingsError, TenxGraphError

Check = Callable[[], Awaitable[object]]

_CHECK_TIMEOUT = 3.0
_KEPT = 1.0
"""Seconds for which an answer is kept, so that probes cost the servers nothing."""
_REQUEST_TIMEOUT = 5.0


class Health:
    """Answers probes. ``alive`` is asked for ``/healthz``; every one of ``checks`` must pass for ``/readyz``."""

    def __init__(self, alive: Callable[[], bool], checks: Mapping[str, Check]) -> None:
        self._alive = alive
        self._checks = checks
        self._ready: tuple[float, dict[str, str]] = (float("-inf"), {})
        self._asking = asyncio.Lock()

    async def problems(self) -> dict[str, str]:
        """What is wrong with each server that does not answer."""
        async with self._asking:
            at, problems = self._ready
            if time.monotonic() - at > _KEPT:
                found = await asyncio.gather(*(_problem(check) for check in self._checks.values()))
                problems = {name: text for name, text in zip(self._checks, found, strict=True) if text}
                self._ready = (time.monotonic(), problems)
            return problems

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer."""
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT):
                request = await reader.readline()
                while (await reader.readline()).strip():
                    pass
                status, body = await self._respond(request.split(b" ")[1].decode() if b" " in request else "")
                data = json.dumps(body).encode()
                head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
                await writer.drain()
        except (TimeoutError, OSError, ValueError):
            pass  # a prober that went away or spoke no HTTP needs no answer
        finally:
            writer.close()

    async def _respond(self, path: str) -> tuple[HTTPStatus, dict[str, object]]:
        if path == "/healthz":
            alive = self._alive()
            return (HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE), {"alive": alive}
        if path == "/readyz":
            problems = await self.problems()
            ready = not problems and self._alive()
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            return status, {"ready": ready, "problems": problems}
        return HTTPStatus.NOT_FOUND, {"paths": ["/healthz", "/readyz"]}


async def _problem(check: Check) -> str:
    try:
        await asyncio.wait_for(check(), _CHECK_TIMEOUT)
    except TimeoutError:
        return f"no answer within {_CHECK_TIMEOUT:g} s"
    except TenxGraphError as exc:
        return str(exc)
    except Exception as exc:  # whatever a server's client raises is the news
        return f"{type(exc).__name__}: {exc}"[:300]
    return ""


@asynccontextmanager
async def serve_health(port: int, health: Health) -> AsyncIterator[None]:
    """Listen on ``port`` of all interfaces, where an orchestrator's probes come from.

    Raises:
        SettingsError: The port is taken.
    """
    try:
        server = await asyncio.start_server(health.answer, port=port)
    except OSError as exc:
        raise SettingsError(f"TENXGRAPH_HEALTH_PORT: port {port} cannot be listened on: {exc}") from exc
    async with server:
        yield
