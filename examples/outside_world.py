"""The outside world: a small HTTP server, in a process of its own, that counts what it is asked to do.

    POST /<action>            does it: counts it, answers {"done": <how often so far>}
    GET  /log                 everything it did, in order: [{"action", "body", "at"}]
    POST /hold/<action>       from now on, <action> is done at once but answered only after a release
    POST /release/<action>    answers those that wait

Run it with ``python -m tenxgraph_temporal.examples.outside_world``; it prints its address.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class World(ThreadingHTTPServer):
    """The server and what it has done."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, _Handler)
        self.log: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.gates: dict[str, threading.Event] = {}


class _Handler(BaseHTTPRequestHandler):
    server: World

    def do_GET(self) -> None:
        with self.server.lock:
            self._answer(list(self.server.log))

    def do_POST(self) -> None:
        verb, _, action = self.path.strip("/").rpartition("/")
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        with self.server.lock:
            if verb == "hold":
                self.server.gates[action] = threading.Event()
                return self._answer({})
            if verb == "release":
                self.server.gates.pop(action).set()
                return self._answer({})
            self.server.log.append({"action": action, "body": body, "at": time.time()})
            done = sum(entry["action"] == action for entry in self.server.log)
            gate = self.server.gates.get(action)
        if gate is not None:
            gate.wait()
        return self._answer({"done": done})

    def _answer(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the log is the answer to GET /log."""


if __name__ == "__main__":
    world = World(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{world.server_address[1]}", flush=True)
    world.serve_forever()
