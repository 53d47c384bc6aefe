"""Reducers: how a field's new value joins its old one.

A reducer is ``(old, new) -> merged`` and is attached to a state field by annotation::

    class State(AgentState):
        notes: Annotated[list[str], operator.add] = []

A field without a reducer is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .message import Message

Reducer = Callable[[Any, Any], Any]


def reduced(field: str, reducer: Reducer, old: Any, new: Any) -> Any:
    """What ``reducer`` makes of two values.

    Raises:
        ValueError: Whatever it raised.
    """
    try:
        return reducer(old, new)
    except Exception as exc:
        raise ValueError(f"the reducer of field {field!r} raised {type(exc).__name__}: {exc}") from exc


def add_messages(left: list[Message], right: list[Message]) -> list[Message]:
    """Append the messages whose id is new; partial (``delta``) messages are left out."""
    known = {message.message_id for message in left}
    merged = list(left)
    for message in right:
        if message.message_id not in known and not message.delta:
            known.add(message.message_id)
            merged.append(message)
    return merged


def replace_messages(left: list[Message], right: list[Message]) -> list[Message]:
    """Take the new list as it is."""
    return right


def append_items(left: list[Any], right: list[Any]) -> list[Any]:
    """Append the items whose ``.id`` is new."""
    known = {item.id for item in left}
    return left + [item for item in right if item.id not in known]


def replace_value(left: Any, right: Any) -> Any:
    """Take the new value."""
    return right
