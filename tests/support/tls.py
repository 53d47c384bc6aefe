"""A door with TLS in front of a server that has none, and the certificates for it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hpack import Decoder

_PREFACE = 24
_HEADERS, _CONTINUATION = 1, 9
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that lives as long as a test."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._signed(self._name, self._key.public_key(), (constraint, True))
        self.certificate = directory / f"{name}.pem"
        self.certificate.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *hosts: str) -> Identity:
        """A certificate for a server that is reached under ``hosts``, or for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            for host in hosts or (name,)
        ]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key.public_key(), (x509.SubjectAlternativeName(names), False))
        made = Identity(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return made

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *extensions: tuple[x509.ExtensionType, bool]
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())


@dataclass
class Door:
    """Ends TLS, and passes everything on to ``target``; what callers send as HTTP/2 headers is kept."""

    target: tuple[str, int]
    headers: list[dict[str, str]] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        """For ``TEMPORAL_ADDRESS``."""
        return f"127.0.0.1:{self.port}"

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        inner_reader, inner_writer = await asyncio.open_connection(*self.target)
        await asyncio.gather(
            self._pass(reader, inner_writer, _Headers(self.headers)), self._pass(inner_reader, writer, None)
        )

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: _Headers | None) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if headers is not None:
                    headers.read(data)
                writer.write(data)
                await writer.drain()
        writer.close()


class _Headers:
    """Picks the headers out of one direction of an HTTP/2 connection."""

    def __init__(self, found: list[dict[str, str]]) -> None:
        self._found = found
        self._unread = b""
        self._begun = False
        self._block = b""
        self._decoder = Decoder()
        self._decoder.max_allowed_table_size = 1 << 20

    def read(self, data: bytes) -> None:
        self._unread += data
        if not self._begun and len(self._unread) >= _PREFACE:
            self._begun, self._unread = True, self._unread[_PREFACE:]
        while self._begun and len(self._unread) >= 9:
            length = int.from_bytes(self._unread[:3])
            if len(self._unread) < 9 + length:
                return
            kind, flags = self._unread[3], self._unread[4]
            frame, self._unread = self._unread[9 : 9 + length], self._unread[9 + length :]
            if kind in (_HEADERS, _CONTINUATION):
                self._add(kind, flags, frame)

    def _add(self, kind: int, flags: int, frame: bytes) -> None:
        if kind == _HEADERS:
            if flags & _PADDED:
                frame = frame[1 : len(frame) - frame[0]]
            if flags & _PRIORITY:
                frame = frame[5:]
        self._block += frame
        if flags & _END_HEADERS:
            self._found.append({_text(name): _text(value) for name, value in self._decoder.decode(self._block)})
            self._block = b""


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


@asynccontextmanager
async def tls_door(target: str, server: Identity, clients: Authority | None = None) -> AsyncIterator[Door]:
    """A door to ``target`` that shows ``server``'s certificate, and lets only those in that ``clients`` knows."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server.certificate, server.key)
    context.set_alpn_protocols(["h2"])
    if clients is not None:
        context.load_verify_locations(clients.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    host, _, port = target.rpartition(":")
    door = Door((host, int(port)))
    listening = await asyncio.start_server(door.enter, "127.0.0.1", ssl=context)
    door.port = listening.sockets[0].getsockname()[1]
    try:
        yield door
    finally:
        listening.close()
