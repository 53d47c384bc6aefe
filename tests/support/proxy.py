"""A door between a process and a server, which a test can shut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Door:
    """Passes connections on to ``port`` while it is open; shut, it cuts them and takes no new ones."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = True
        self._connections: set[asyncio.StreamWriter] = set()
        self.address = ""

    def shut(self) -> None:
        """Cut everything off."""
        self._open = False
        for writer in self._connections:
            writer.transport.abort()

    def open(self) -> None:
        """Let connections pass again."""
        self._open = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        if not self._open:
            writer.transport.abort()
            return
        onward, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._connections |= {writer, back}
        try:
            await asyncio.gather(_pass(reader, back), _pass(onward, writer))
        finally:
            self._connections -= {writer, back}


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def door_to(port: int) -> AsyncIterator[Door]:
    """A door in front of a local server."""
    door = Door(port)
    server = await asyncio.start_server(door.serve, "127.0.0.1", 0)
    door.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield door
    finally:
        door.shut()
        server.close()
