"""A codec server: lets Temporal's UI and command line show, and send, what is encrypted in the histories.

Whoever reaches it can have any payload decrypted. So it listens on this machine only, unless callers need a token; and
it answers no web page but those that it was told of.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from urllib.parse import urlsplit

from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from .codec import EncryptionCodec
from .errors import EncryptionError, SettingsError

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Of one request: Temporal's own limit is 4 MB for a message, which base64 makes a third larger."""
_IDLE_SECONDS = 30.0
_FORM = 'the body must be {"payloads": [{"metadata": {"encoding": base64, ...}, "data": base64}, ...]}'
_LENGTH = re.compile(r"[0-9]{1,15}")


class CodecServer(ThreadingHTTPServer):
    """Answers ``POST /encode`` and ``POST /decode``, under any path before, as Temporal's remote codecs do.

    Args:
        codec: With keys.
        host: A name or IPv4 address to listen on.
        port: 0 takes a free one.
        origins: Of the UIs that may ask, such as ``https://cloud.temporal.io``.
        token: What callers must send as ``Authorization: Bearer ...``; empty for no such check.

    Raises:
        SettingsError: There are no keys, nothing protects the address, an origin is none, or the port is taken.
    """

    daemon_threads = True

    def __init__(
        self,
        codec: EncryptionCodec,
        *,
        host: str = "127.0.0.1",
        port: int,
        origins: Sequence[str] = (),
        token: str = "",
    ) -> None:
        if not codec.keys:
            raise SettingsError(
                "there is nothing to decode with: set TENXGRAPH_ENCRYPTION_KEYS as your workers have it"
            )
        if not token and not _is_local(host):
            raise SettingsError(
                f"whoever reaches {host} could have every payload decrypted: set TENXGRAPH_CODEC_SERVER_TOKEN, which a "
                "proxy in front of it may add once it knows its user; or listen on 127.0.0.1"
            )
        self.origins = frozenset(map(_origin, origins))
        self.work: dict[str, Callable[[Payload], Payload]] = {"encode": codec.encrypt, "decode": codec.decrypt}
        self.authorization = f"Bearer {token}".encode() if token else None
        try:
            super().__init__((host, port), _Handler)
        except OSError as exc:
            raise SettingsError(f"{host}:{port} cannot be listened on: {exc}") from exc

    @property
    def url(self) -> str:
        """For ``TEMPORAL_CODEC_ENDPOINT`` and the UI."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Of a caller that went away, or a mistake of ours: never with what was asked."""
        logger.debug("a request of %s ended", client_address, exc_info=True)


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: CodecServer
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS

    def do_OPTIONS(self) -> None:
        """A browser's question before it lets a page ask."""
        if self._allowed_origin() is None:
            self._answer(HTTPStatus.FORBIDDEN, {"error": "this origin may not ask; see --allow-origin"})
            return
        self.send_response(HTTPStatus.NO_CONTENT)
        self.send_header("Access-Control-Allow-Methods", "POST, OPTIONS")
        self.send_header(
            "Access-Control-Allow-Headers", "Content-Type, X-Namespace, Authorization, Authorization-Extras"
        )
        self.send_header("Access-Control-Max-Age", "600")
        if self.headers.get("Access-Control-Request-Private-Network") == "true":
            self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def do_GET(self) -> None:
        """Nothing is to be had this way."""
        self.close_connection = True
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "POST to /encode or /decode"})

    def do_POST(self) -> None:
        """Encode or decode."""
        try:
            work = self._work()
            body = self._body()
            payloads = _parse(body)
            done = Payloads(payloads=map(work, payloads.payloads))
        except _Refused as exc:
            self.close_connection = True  # what was sent may be unread
            self._answer(exc.status, {"error": str(exc)})
        except EncryptionError as exc:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(exc)})
        else:
            self._answer(HTTPStatus.OK, json_format.MessageToDict(done))

    def _work(self) -> Callable[[Payload], Payload]:
        """What the caller asks for, if they may."""
        if self.headers.get("Origin") and self._allowed_origin() is None:
            raise _Refused(HTTPStatus.FORBIDDEN, "this origin may not ask; see --allow-origin")
        expected = self.server.authorization
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if expected is not None and not hmac.compare_digest(given, expected):
            raise _Refused(HTTPStatus.UNAUTHORIZED, "Authorization: Bearer TENXGRAPH_CODEC_SERVER_TOKEN is needed")
        path = self.path.partition("?")[0]
        work = self.server.work.get(path.rpartition("/")[2])
        if work is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "there are /encode and /decode")
        return work

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "").strip()
        if not length or self.headers.get("Transfer-Encoding"):
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "Content-Length is needed")
        if not _LENGTH.fullmatch(length):
            raise _Refused(HTTPStatus.BAD_REQUEST, "Content-Length is no number")
        if int(length) > MAX_BODY_BYTES:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {MAX_BODY_BYTES} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise _Refused(HTTPStatus.BAD_REQUEST, "the body is shorter than Content-Length says")
        return body

    def _allowed_origin(self) -> str | None:
        origin = self.headers.get("Origin", "").lower()
        return origin if origin in self.server.origins else None

    def _answer(self, status: HTTPStatus, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def end_headers(self) -> None:
        """Every answer says whether a page may read it."""
        origin = self._allowed_origin() if hasattr(self, "headers") else None
        if origin is not None:
            self.send_header("Access-Control-Allow-Origin", origin)
            self.send_header("Access-Control-Allow-Credentials", "true")
        self.send_header("Vary", "Origin")
        super().end_headers()

    def version_string(self) -> str:
        """Without the versions of what is underneath."""
        return "tenxgraph-temporal"

    def log_message(self, format: str, *args: object) -> None:
        """Who asked for what, and how it ended; never what was in it."""
        namespace = self.headers.get("X-Namespace", "") if hasattr(self, "headers") else ""
        logger.info("%s, namespace %r: %r", self.address_string(), namespace[:200], format % args)


def _parse(body: bytes) -> Payloads:
    try:
        document = json.loads(body)
        if not isinstance(document, dict):
            raise TypeError
        return json_format.ParseDict(document, Payloads())
    except (json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError):
        raise _Refused(HTTPStatus.BAD_REQUEST, _FORM) from None  # the error's own text may hold what was sent


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _origin(text: str) -> str:
    """An origin as browsers send it.

    Raises:
        SettingsError: It is none; ``*`` is none either.
    """
    origin = text.rstrip("/").lower()
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
        raise SettingsError(f"--allow-origin {text!r} is no origin, such as http://localhost:8233")
    return origin
