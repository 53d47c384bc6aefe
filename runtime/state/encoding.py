"""State and values as JSON bytes that Postgres can hold.

What JSON cannot say is stored by one documented encoding, the same for state, messages and tool results:

    NaN, infinities          the strings "NaN", "Infinity", "-Infinity"
    NUL, lone surrogates     U+FFFD, the replacement character
    bytes                    base64 text
    Decimal, UUID, Path      text
    datetime, date, time     ISO 8601 text, zone kept; timedelta: ISO 8601 duration
    set, tuple, generator    list
    dataclass, pydantic      object
    int                      number, up to 4000 digits

Functions, sockets, cycles and the like raise ``EncodingError``. State fields come back as the types that
their annotations name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from ..errors import EncodingError, problems
from .agent_state import AgentState

S = TypeVar("S", bound=AgentState)

Fields = Mapping[str, bytes]
"""A state as stored: JSON bytes by field name."""

_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_MAX_INT_DIGITS = 4000  # Python refuses to parse numbers of more than 4300
_LONG_DIGITS = re.compile(rb"[0-9]{%d}" % _MAX_INT_DIGITS)
_SAMPLE = 100
_SAMPLED_DIGITS = re.compile(rb"[0-9]{%d}" % (_MAX_INT_DIGITS // _SAMPLE))
"""What that leaves in every ``_SAMPLE``-th byte, which is searched in a hundredth of the time."""


def clean_text(text: str) -> str:
    """``text`` with what Postgres cannot hold replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and value.bit_length() > _MAX_INT_DIGITS * 3.33:
        raise ValueError(f"an integer of more than {_MAX_INT_DIGITS} digits")
    return value


def to_jsonable(value: Any) -> Any:
    """``value`` in JSON-native types, by the encoding above.

    Raises:
        EncodingError: The value, or something in it, has no JSON form.
    """
    try:
        try:
            plain = to_jsonable_python(value, inf_nan_mode="strings", bytes_mode="base64")
        except UnicodeError:  # a lone surrogate in a key
            plain = to_jsonable_python(_clean(value), inf_nan_mode="strings", bytes_mode="base64")
        return _clean(plain)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as exc:
        raise EncodingError(f"{type(value).__name__} cannot be stored as JSON: {exc}") from exc


def dump_json(value: Any) -> bytes:
    """``value`` as JSON that Postgres accepts.

    Raises:
        EncodingError: As ``to_jsonable``.
    """
    return _storable(lambda: to_json(value, inf_nan_mode="strings", bytes_mode="base64"), lambda: value)


def _storable(fast: Callable[[], bytes], plain: Callable[[], Any]) -> bytes:
    """JSON from ``fast``; where that is not storable, from the cleaned value of ``plain``."""
    try:
        data = fast()
    except (PydanticSerializationError, ValueError, TypeError):
        data = to_json(to_jsonable(plain()))
    if _SAMPLED_DIGITS.search(data[::_SAMPLE]) and _LONG_DIGITS.search(data):
        data = to_json(to_jsonable(plain()))  # a huge number, or only a text of digits: the slow path tells
    return _NUL.sub(rb"\1\\ufffd", data) if b"\\u0000" in data else data


def load_json(data: bytes | str) -> Any:
    """The JSON-native value in ``data``."""
    return from_json(data)


def encode_state(state: AgentState) -> dict[str, bytes]:
    """Each field of ``state`` as JSON bytes.

    Raises:
        EncodingError: A field holds what JSON cannot; names the field.
    """
    fields: dict[str, bytes] = {}
    serializer = type(state).__pydantic_serializer__
    for name in type(state).model_fields:
        try:
            data = _storable(
                partial(serializer.to_json, state, include={name}, warnings=False),
                partial(serializer.to_python, state, include={name}, warnings=False),
            )
        except EncodingError as exc:
            raise EncodingError(
                f"field {name!r} of {type(state).__name__}: {exc.text}; "
                "keep plain data in state, and open handles where they are used"
            ) from exc
        fields[name] = data[data.index(b":") + 1 : -1]  # `{"name":<value>}`: the value alone is kept
    return fields


def decode_state(cls: type[S], fields: Fields) -> S:
    """A fresh ``cls`` from stored fields; it shares nothing with any other copy.

    Raises:
        EncodingError: The stored state does not fit the class; names the fields.
    """
    try:
        return cls.model_validate_json(join_fields(fields))
    except ValueError as exc:
        raise EncodingError(
            f"the stored state does not fit {cls.__name__}: {problems(exc)}; "
            "give changed fields a default or a validator that accepts the old form"
        ) from exc


def check_fields(cls: type[AgentState], fields: Fields) -> None:
    """Check that changed fields can be read again: code may assign anything in place.

    Raises:
        EncodingError: A field holds what its annotation does not allow; names the field.
    """
    for name in fields.keys() - {"context", "execution_meta"}:
        try:
            cls.__pydantic_validator__.validate_assignment(cls.model_construct(), name, from_json(fields[name]))
        except ValueError as exc:
            raise EncodingError(
                f"field {name!r} of {cls.__name__} was given a value that it cannot hold: {exc}"
            ) from exc


def join_fields(fields: Fields) -> bytes:
    """One JSON object of all fields."""
    return b"{" + b",".join(to_json(name) + b":" + value for name, value in fields.items()) + b"}"


def changes(base: Fields, fields: Fields) -> bytes:
    """What makes ``fields`` of ``base``: ``{"set": {field: value}, "append": {field: new items of a list}}``."""
    new: dict[str, bytes] = {}
    appended: dict[str, bytes] = {}
    for name, value in fields.items():
        old = base.get(name)
        if value == old:
            continue
        kept = len(old) - 1 if old is not None else 0
        if (
            old is not None
            and kept > 1
            and old[:1] == b"["
            and value[kept : kept + 1] == b","
            and value.startswith(old[:-1])
        ):
            appended[name] = b"[" + value[kept + 1 :]
        else:
            new[name] = value
    return b'{"set":' + join_fields(new) + b',"append":' + join_fields(appended) + b"}"


def split_fields(data: bytes | str) -> dict[str, bytes]:
    """The inverse of ``join_fields``, for an object that came from a database."""
    return {name: to_json(value) for name, value in from_json(data).items()}
