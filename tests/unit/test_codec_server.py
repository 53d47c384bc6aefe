"""The codec server over HTTP: whom it answers, what it takes, and what it tells."""

from __future__ import annotations

import base64
import json
import logging
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any

import pytest

from tenxgraph_temporal import EncryptionCodec, EncryptionKeys
from tenxgraph_temporal.runtime.codec_server import MAX_BODY_BYTES, CodecServer
from tenxgraph_temporal.runtime.errors import SettingsError

from ..support.codec import serving

KEYS = EncryptionKeys({"k1": bytes(range(32))})
UI = "http://localhost:8233"
SECRET = "the customer's card is 4242"


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


PLAIN = {"metadata": {"encoding": base64_of(b"json/plain")}, "data": base64_of(json.dumps(SECRET).encode())}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(server: CodecServer, path: str, body: Any = None, method: str = "POST", **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(server.url + path, data, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return Answer(answer.status, answer.headers, answer.read().decode())
    except urllib.error.HTTPError as exc:
        with exc:
            return Answer(exc.code, exc.headers, exc.read().decode())


def ask_raw(server: CodecServer, request: bytes) -> str:
    """What comes back for bytes that no client would send."""
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


@pytest.fixture(scope="module")
def server() -> Iterator[CodecServer]:
    with serving(KEYS, origins=[UI + "/"]) as running:
        yield running


@pytest.mark.parametrize("prefix", ["", "/default", "/a/b"])
def test_there_and_back(server: CodecServer, prefix: str) -> None:
    """As Temporal's UI asks, which adds a query; a namespace may stand in the path."""
    sent = {"payloads": [PLAIN, {"metadata": {"encoding": base64_of(b"binary/null")}}]}
    encrypted = ask(server, f"{prefix}/encode", sent, X_Namespace="default")
    assert encrypted.status == 200, encrypted
    assert SECRET not in encrypted.text
    assert [base64.b64decode(p["metadata"]["encoding"]) for p in encrypted.json["payloads"]] == [
        b"binary/encrypted",
        b"binary/encrypted",
    ]
    back = ask(server, f"{prefix}/decode?preserveStorageRefs=true", encrypted.json, X_Namespace="default")
    assert (back.status, back.json) == (200, sent)
    assert back.headers["Cache-Control"] == "no-store"


def test_what_is_not_encrypted_passes(server: CodecServer) -> None:
    assert ask(server, "/decode", {"payloads": [PLAIN]}).json == {"payloads": [PLAIN]}
    assert ask(server, "/decode", {"payloads": []}).json == {}


def test_a_payload_that_cannot_be_decrypted(server: CodecServer) -> None:
    with serving(EncryptionKeys({"k2": bytes(32)})) as other:
        encrypted = ask(other, "/encode", {"payloads": [PLAIN]}).json
    refused = ask(server, "/decode", encrypted, Origin=UI)
    assert refused.status == 400, refused
    assert "encrypted with the key 'k2', and this process has the keys k1" in refused.json["error"]
    assert refused.headers["Access-Control-Allow-Origin"] == UI, "the page may read the reason"


# --- who is answered ----------------------------------------------------------------------------------------


def test_the_ui_may_ask(server: CodecServer) -> None:
    preflight = ask(
        server,
        "/decode",
        method="OPTIONS",
        Origin=UI,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="content-type,x-namespace",
        Access_Control_Request_Private_Network="true",
    )
    assert preflight.status == 204, preflight
    assert preflight.headers["Access-Control-Allow-Origin"] == UI
    assert {"content-type", "x-namespace", "authorization"} <= set(
        preflight.headers["Access-Control-Allow-Headers"].lower().split(", ")
    )
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    assert preflight.headers["Access-Control-Allow-Private-Network"] == "true"
    answer = ask(server, "/decode", {"payloads": [PLAIN]}, Origin=UI)
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == UI
    assert answer.headers["Vary"] == "Origin"


@pytest.mark.parametrize("origin", ["http://evil.example", UI + ".evil.example", "http://localhost:8234", "null", "*"])
def test_no_other_page_may(server: CodecServer, origin: str) -> None:
    """Neither with a question before nor without: a form needs none, and a rebound name makes the origin its own."""
    for answer in (
        ask(server, "/decode", method="OPTIONS", Origin=origin, Access_Control_Request_Method="POST"),
        ask(server, "/decode", {"payloads": [PLAIN]}, Origin=origin),
    ):
        assert answer.status == 403, answer
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert "card" not in answer.text


def test_a_token_is_needed_where_there_is_one() -> None:
    with serving(KEYS, token="s3cret-token", host="127.0.0.1") as server:
        assert ask(server, "/decode", {"payloads": [PLAIN]}, Authorization="Bearer s3cret-token").status == 200
        for wrong in ({}, {"Authorization": "s3cret-token"}, {"Authorization": "Bearer s3cret-tokem"}):
            answer = ask(server, "/decode", {"payloads": [PLAIN]}, **wrong)
            assert answer.status == 401, answer
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert "s3cret" not in answer.text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"host": "0.0.0.0"}, "TENXGRAPH_CODEC_SERVER_TOKEN"),
        ({"host": "example.org"}, "TENXGRAPH_CODEC_SERVER_TOKEN"),
        ({"keys": EncryptionKeys()}, "set TENXGRAPH_ENCRYPTION_KEYS"),
        ({"origins": ["*"]}, "is no origin"),
        ({"origins": ["http://localhost:8233/path"]}, "is no origin"),
        ({"origins": ["localhost:8233"]}, "is no origin"),
        ({"host": "203.0.113.1", "token": "t"}, "cannot be listened on"),
    ],
)
def test_it_does_not_start(options: dict[str, Any], problem: str) -> None:
    codec = EncryptionCodec(options.pop("keys", KEYS))
    with pytest.raises(SettingsError, match=problem):
        CodecServer(codec, port=0, **options)


# --- what it takes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"SECRET",
        b"[]",
        b"1",
        b'{"payloads": "SECRET"}',
        b'{"payloads": [{"data": "SECRET!"}]}',
        b'{"payloads": [{"metadata": {"encoding": 1}}]}',
        b'{"payloads": [{"SECRET": "x"}]}',
        b'{"payloads": [1]}',
        b'{"payloads": [{"metadata": []}]}',
        b'{"payloads": [{"metadata": [1], "data": {}}]}',
        b"[" * 100_000,
    ],
)
def test_a_malformed_body(server: CodecServer, body: bytes) -> None:
    answer = ask(server, "/decode", body)
    assert answer.status == 400, answer
    assert answer.json["error"].startswith("the body must be"), answer
    assert "SECRET" not in answer.text


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        ("POST /decode HTTP/1.1\r\n\r\n", 411),
        ("POST /decode HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        ("POST /decode HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        ("POST /decode HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
        ("POST /decode HTTP/1.1\r\nContent-Length: 100\r\n\r\n{}", 400),
        (f"POST /decode HTTP/1.1\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n", 413),
        ("POST //[/decode HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 200),
        ("POST /elsewhere HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 404),
        ("GET /decode HTTP/1.1\r\n\r\n", 405),
        ("PUT /decode HTTP/1.1\r\n\r\n", 501),
        ("nonsense\r\n\r\n", 400),
        ("GET /" + "a" * 70_000 + " HTTP/1.1\r\n\r\n", 414),
    ],
)
def test_a_malformed_request(server: CodecServer, request_head: str, status: int) -> None:
    answer = ask_raw(server, request_head.encode())
    assert f" {status} " in answer.splitlines()[0] or f"Error code: {status}" in answer, answer


def test_large_payloads_go_through(server: CodecServer) -> None:
    """Temporal's largest, 2 MB, more than once."""
    large = {"metadata": {"encoding": base64_of(b"binary/plain")}, "data": base64_of(b"x" * 2 * 1024 * 1024)}
    encrypted = ask(server, "/encode", {"payloads": [large] * 3}).json
    assert ask(server, "/decode", encrypted).json == {"payloads": [large] * 3}


def test_it_logs_who_asked_and_nothing_of_what(server: CodecServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(server, "/encode", {"payloads": [PLAIN]}, X_Namespace="agents\x1b[2J")
    (record,) = [record.getMessage() for record in caplog.records if record.name.endswith("codec_server")]
    assert record == "127.0.0.1, namespace 'agents\\x1b[2J': '\"POST /encode HTTP/1.1\" 200 -'"
