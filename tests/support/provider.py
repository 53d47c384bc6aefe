"""A model provider: a real server that speaks OpenAI's protocol."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Provider:
    """A server that speaks the chat-completions protocol."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    message: dict[str, Any] = field(default_factory=lambda: {"content": "hi"})
    extra: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = "stop"
    status: int = 200
    page: str | None = None
    delay: threading.Event | None = None

    def answer(self) -> dict[str, Any]:
        if self.status != 200:
            return {"error": {"message": "no", "type": "error", "code": None, "param": None}}
        message = {"role": "assistant", "content": None, "refusal": None, **self.message}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "served-model",
            "choices": [{"index": 0, "message": message, "finish_reason": self.finish_reason, "logprobs": None}],
            **self.extra,
        }

    def sent(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.requests[-1]["messages"]
        return messages


@contextmanager
def provider() -> Iterator[Provider]:
    """A provider that answers as its fields say, and keeps what it was sent."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            here.requests.append(json.loads(body))
            here.headers.append({**{k.lower(): v for k, v in self.headers.items()}, "path": self.path})
            if here.delay is not None:
                here.delay.wait(30)
            data = (here.page or json.dumps(here.answer())).encode()
            try:
                self.send_response(here.status)
                self.send_header("Content-Type", "text/html" if here.page else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # the client went away
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here = Provider(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield here
    if here.delay is not None:
        here.delay.set()
    server.shutdown()
    thread.join()
    server.server_close()
