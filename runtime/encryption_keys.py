"""The keys of payload encryption: a ring, of which the first encrypts and all decrypt."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

PLAIN = "plain"
"""As the first entry: encrypt nothing, decrypt with the others. For switching encryption on and off."""
KEY_BYTES = 32

_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,40}")
"""Short enough that a key in the place of its id does not pass for one."""
_URL_SAFE = str.maketrans("-_", "+/")
_FORM = (
    "id:key, with an id of up to 40 letters, digits, '.', '_' or '-', and 32 bytes in base64 (openssl rand -base64 32)"
)


class EncryptionKeys:
    """AES-256 keys by id. Shows ids only, whatever prints it.

    Args:
        keys: In order: the first one encrypts, unless ``encrypting`` is false.
        encrypting: False leaves new payloads in clear.

    Raises:
        ValueError: A key or an id is not of the right form; tells which entry, and never what it holds.
    """

    __slots__ = ("_keys", "current_id")

    def __init__(self, keys: Mapping[str, bytes] | None = None, *, encrypting: bool = True) -> None:
        self._keys = dict(keys or {})
        for number, (key_id, key) in enumerate(self._keys.items(), start=1):
            if not _KEY_ID.fullmatch(key_id) or key_id == PLAIN or len(key) != KEY_BYTES:
                raise ValueError(f"entry {number} is not {_FORM}")
        self.current_id = next(iter(self._keys), None) if encrypting else None
        """Of the key that encrypts; ``None`` if nothing is encrypted."""

    @classmethod
    def parse(cls, text: str) -> EncryptionKeys:
        """Read ``id:base64,id2:base64``; empty for none. ``plain`` may stand first.

        Raises:
            ValueError: It cannot be read, or an id is there twice; tells which entry, and never what it holds.
        """
        if not text.strip():
            return cls()
        entries = [entry.strip() for entry in text.split(",")]
        first = 1 if entries[0] == PLAIN else 0
        keys: dict[str, bytes] = {}
        for number, entry in enumerate(entries[first:], start=first + 1):
            key_id, _, encoded = entry.partition(":")
            key = _decoded(encoded)
            if not _KEY_ID.fullmatch(key_id) or key_id == PLAIN or key is None:
                raise ValueError(f"entry {number} of {len(entries)} is not {_FORM}")
            if key_id in keys:
                raise ValueError(f"entry {number} of {len(entries)} has the id of an earlier one; ids must differ")
            keys[key_id] = key
        if not keys:
            raise ValueError(f"{PLAIN!r} stands before keys that still decrypt, and there are none; leave it out")
        return cls(keys, encrypting=not first)

    @property
    def ids(self) -> tuple[str, ...]:
        """Of all keys, in order."""
        return tuple(self._keys)

    def items(self) -> list[tuple[str, bytes]]:
        """Ids with their keys, in order."""
        return list(self._keys.items())

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __repr__(self) -> str:
        return f"EncryptionKeys(ids={self.ids}, current_id={self.current_id!r})"


def _decoded(text: str) -> bytes | None:
    try:
        key = base64.b64decode(text.translate(_URL_SAFE), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None
