"""The outside world as a test sees it: what was done, and how often."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections import Counter
from typing import Any


class World:
    """A client of a running ``examples/outside_world.py``."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def log(self) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._request, "log", None)

    async def counts(self) -> Counter[str]:
        return Counter(entry["action"] for entry in await self.log())

    async def hold(self, action: str) -> None:
        await asyncio.to_thread(self._request, f"hold/{action}", {})

    async def release(self, action: str) -> None:
        await asyncio.to_thread(self._request, f"release/{action}", {})

    async def until(self, action: str, count: int = 1, *, timeout: float = 60) -> None:
        """Wait until ``action`` was done ``count`` times."""
        async with asyncio.timeout(timeout):
            while (await self.counts())[action] < count:
                await asyncio.sleep(0.02)

    def _request(self, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.address}/{path}", data, timeout=30) as answer:
            return json.load(answer)


def do(address: str, action: str, **body: Any) -> Any:
    """Ask the world to do something, from a tool."""
    with urllib.request.urlopen(f"{address}/{action}", json.dumps(body).encode(), timeout=120) as answer:
        return json.load(answer)
