"""The identity of a tool call: ``message_id:tool_call_id``, settled when the message is committed.

Providers reuse ids across turns, repeat an id inside one message, send empty ids, and ids with ``:`` in them.
Ids are therefore repaired in the message itself, before anything reads them: the model, the ledger and every
observer see the same id. The joined key is unambiguous because no message id that issues calls contains a
``:``, and nothing is ever cut to an equal prefix.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

from ..state import Message
from ..state.encoding import clean_text

_MAX_KEY = 255  # width of tool_executions.tool_call_id and messages.message_id
_MAX_CALL_ID = 200
_MAX_ISSUER_ID = _MAX_KEY - 1 - _MAX_CALL_ID
_NAMESPACE = uuid.UUID("6f1d7f0e-5f0b-4f4e-9d53-3e3a7f3f5a52")


def ledger_key(message_id: str, tool_call_id: str) -> str | None:
    """The key of a call, or ``None`` where it has no usable identity: the ledger is then skipped."""
    return f"{message_id}:{tool_call_id}" if message_id and tool_call_id else None


def idempotency_key(thread_id: str, message_id: str, tool_call_id: str) -> str:
    """A key for the outside world: 45 letters, digits and ``_``, the same for every attempt at the call."""
    name = f"{thread_id}\0{message_id}:{tool_call_id}"
    return "tenx_" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def reidentified(thread_id: str, message_id: str) -> str:
    """The id that replaces one which cannot be used in ``thread_id``; the same on every attempt."""
    name = f"{thread_id}\0{message_id}".encode("utf-8", "surrogatepass")
    return str(uuid.uuid5(_NAMESPACE, hashlib.sha256(name).hexdigest()))


def settle_identity(message: Message, thread_id: str) -> None:
    """Make the message's id and the ids of its calls storable, unambiguous and distinct, in place."""
    message_id = clean_text(message.message_id)
    limit = _MAX_ISSUER_ID if message.tools_calls else _MAX_KEY
    if message_id != message.message_id or len(message_id) > limit or (message.tools_calls and ":" in message_id):
        message_id = reidentified(thread_id, message.message_id)
    message.message_id = message_id
    if message.tools_calls:
        message.tools_calls = _settle_calls(message.tools_calls, message_id)


def _settle_calls(calls: list[dict[str, Any]], message_id: str) -> list[dict[str, Any]]:
    # Ids that are fine as they are keep their name; the others must not take one of those.
    wanted = [_storable(call.get("id"), message_id, index) for index, call in enumerate(calls)]
    taken = set(wanted)
    seen: set[str] = set()
    settled = []
    for call, call_id in zip(calls, wanted, strict=True):
        unique, number = call_id, 1
        while unique in seen:
            number += 1
            candidate = f"{call_id}_{number}"
            if candidate not in taken:
                unique = candidate
                taken.add(unique)
        seen.add(unique)
        settled.append({**call, "id": unique})
    return settled


def _storable(call_id: Any, message_id: str, index: int) -> str:
    text = clean_text("" if call_id is None else str(call_id))
    if not text:
        return "call_" + hashlib.sha256(f"{message_id}\0{index}".encode()).hexdigest()[:24]
    if len(text) > _MAX_CALL_ID - 8:  # room for the suffix of a repeated id
        return "call_" + hashlib.sha256(text.encode()).hexdigest()[:40]
    return text
