"""The worker's probes, with the servers there and gone."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request
from typing import Any

from tenxgraph_temporal.examples.process import worker_process
from tenxgraph_temporal.runtime.devstack import dev_stack

from ..support.app import eventually

STORY = "tenxgraph_temporal.tests.support.graphs:story"


def get(port: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def test_healthy_ready_and_back_again() -> None:
    port = free_port()
    async with dev_stack(redis=False) as stack:
        environment = {
            "TEMPORAL_ADDRESS": stack.temporal_address,
            "TENXGRAPH_DATABASE_URL": stack.postgres_dsn,
            "TENXGRAPH_HEALTH_PORT": str(port),
        }
        async with worker_process(STORY, env=environment) as worker:
            assert await asyncio.to_thread(get, port, "/healthz") == (200, {"alive": True})
            assert await asyncio.to_thread(get, port, "/readyz") == (200, {"ready": True, "problems": {}})
            assert (await asyncio.to_thread(get, port, "/other"))[0] == 404
            await stack.postgres.stop()

            async def not_ready() -> Any:
                status, body = await asyncio.to_thread(get, port, "/readyz")
                return status == 503 and body

            body = await eventually(not_ready)
            assert list(body["problems"]) == ["database"], body
            assert (await asyncio.to_thread(get, port, "/healthz"))[0] == 200
            await stack.postgres.start()

            async def ready() -> bool:
                return (await asyncio.to_thread(get, port, "/readyz"))[0] == 200

            await eventually(ready)
            assert await worker.terminate() == 0
