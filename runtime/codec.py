"""Encryption of what crosses Temporal: AES-256-GCM over whole payloads, with a ring of keys.

An encrypted payload has the encoding ``binary/encrypted`` and says which cipher and which key were used. Its data is a
random nonce of 96 bits and the encrypted payload, its metadata included. Cipher and key id are authenticated with it.
Random nonces are safe for about 4 billion payloads per key: rotate before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadCodec, PayloadConverter

from .encryption_keys import EncryptionKeys
from .errors import EncryptionError, SettingsError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ENCODING = b"binary/encrypted"
CIPHER = b"AES-256-GCM"
CIPHER_FIELD = "encryption-cipher"
KEY_ID_FIELD = "encryption-key-id"

_NONCE_BYTES = 12
_SETTING = "TENXGRAPH_ENCRYPTION_KEYS"


class EncryptionCodec(PayloadCodec):
    """Encrypts with the first key, decrypts with any, and lets what is not encrypted pass.

    Without keys it lets everything pass that is not encrypted. A worker needs it all the same: a payload that cannot be
    read then stops the workflow task, which is tried again, and is no argument that the workflow fails for.

    Raises:
        SettingsError: There are keys, and ``cryptography`` is not installed.
    """

    def __init__(self, keys: EncryptionKeys) -> None:
        self.keys = keys
        self._ciphers = _ciphers(keys) if keys else {}

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See ``PayloadCodec``."""
        return [self.encrypt(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See ``PayloadCodec``.

        Raises:
            EncryptionError: As ``decrypt``.
        """
        return [self.decrypt(payload) for payload in payloads]

    def encrypt(self, payload: Payload) -> Payload:
        """``payload`` as it crosses Temporal."""
        key_id = self.keys.current_id
        if key_id is None:
            return payload
        nonce = os.urandom(_NONCE_BYTES)
        data = self._ciphers[key_id].encrypt(nonce, payload.SerializeToString(), _authenticated(key_id))
        metadata = {"encoding": ENCODING, CIPHER_FIELD: CIPHER, KEY_ID_FIELD: key_id.encode()}
        return Payload(metadata=metadata, data=nonce + data)

    def decrypt(self, payload: Payload) -> Payload:
        """The payload that was encrypted; one that was not, as it is.

        Raises:
            EncryptionError: Its key is not in the ring, or it was changed or cut. Names the key, never the content.
        """
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        key_id = payload.metadata.get(KEY_ID_FIELD, b"").decode(errors="replace")[:100]
        if payload.metadata.get(CIPHER_FIELD) != CIPHER:
            raise EncryptionError(
                f"a payload (key {key_id!r}) is encrypted by another codec than this one; give that codec to the client"
            )
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            has = f"has the keys {', '.join(self.keys.ids)}" if self.keys else "has no keys"
            raise EncryptionError(
                f"a payload is encrypted with the key {key_id!r}, and this process {has}; set {_SETTING} to what the "
                "process has that encrypted it, and keep old keys in it for as long as anything needs them"
            )
        from cryptography.exceptions import InvalidTag

        try:
            plain = cipher.decrypt(payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:], _authenticated(key_id))
            return Payload.FromString(plain)
        except (InvalidTag, ValueError, DecodeError):
            raise EncryptionError(
                f"a payload cannot be decrypted with the key {key_id!r}: it was changed or cut on its way, or another "
                f"key had this id; compare {_SETTING} with that of the process that encrypted it"
            ) from None


class EncodedFailureConverter(DefaultFailureConverter):
    """Puts the texts and stack traces of failures into payloads, so that a codec encrypts them.

    Only an ``EncryptionError`` stays readable: it holds no content, and whoever has to mend the keys has not got them.
    """

    def __init__(self) -> None:
        super().__init__(encode_common_attributes=True)

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """See ``FailureConverter``."""
        super().to_failure(exception, payload_converter, failure)
        if isinstance(exception, EncryptionError):
            failure.message = str(exception)
            failure.ClearField("encoded_attributes")


def _authenticated(key_id: str) -> bytes:
    return CIPHER + b" " + key_id.encode()


def _ciphers(keys: EncryptionKeys) -> dict[str, AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as exc:
        raise SettingsError(f"{_SETTING} needs cryptography: pip install 'tenxgraph-temporal[encryption]'") from exc
    return {key_id: AESGCM(key) for key_id, key in keys.items()}
