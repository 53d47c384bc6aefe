"""Ready checks without a client library."""

from __future__ import annotations

import asyncio
import contextlib


async def listens(port: int) -> bool:
    """Whether somebody accepts connections on the port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


async def ask(port: int, request: bytes, *, until: bytes) -> bytes:
    """Send one request and return the answer up to ``until``, or what came before the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.readuntil(until)
    except asyncio.IncompleteReadError as exc:
        return exc.partial
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
