"""What a tool may return, and how it is kept in the ledger.

Every return value becomes one message of role ``tool``, in the envelope
``{"__kind__": "message", "value": <Message>}``. Two optional keys beside it are ours: ``state``, the fields
that the tool changed in its copy of the state, and ``goto``, where a ``Command`` sends the run. A replay
restores all of it, equal to the first run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from ..command import Command
from ..errors import EncodingError, problems
from ..state import Message
from ..state.blocks import Block, ContentBlock, DataBlock, ErrorBlock, ToolResultBlock
from ..state.encoding import clean_text, dump_json, load_json, to_jsonable

MAX_ERROR_CHARS = 2000
"""Longest error text that crosses Temporal or is shown to the model."""
MAX_RESULT_BYTES = 64 * 1024 * 1024


@dataclass(kw_only=True)
class ToolResult:
    """A tool's answer together with changes to the state.

    ``state`` sets the named fields. ``is_error`` marks the call as failed for the model.
    """

    message: Any = None
    state: dict[str, Any] = field(default_factory=dict)
    is_error: bool = False


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """A finished call: its message, and what the state takes over from it (JSON-native)."""

    message: Message
    state: dict[str, Any] = field(default_factory=dict)
    goto: str | None = None

    @cached_property
    def envelope(self) -> dict[str, Any]:
        """The ledger's form of the call, JSON-native.

        Raises:
            EncodingError: The message has no JSON form, or is larger than ``MAX_RESULT_BYTES``.
        """
        envelope: dict[str, Any] = {"__kind__": "message", "value": self.message}
        if self.state:
            envelope["state"] = self.state
        if self.goto:
            envelope["goto"] = self.goto
        data = dump_json(envelope)
        if len(data) > MAX_RESULT_BYTES:
            raise EncodingError(
                f"the result has {len(data)} bytes, more than {MAX_RESULT_BYTES}; return a reference to it instead"
            )
        stored: dict[str, Any] = load_json(data)
        return stored

    @property
    def failed(self) -> bool:
        """Whether the model is told that the call failed."""
        return any(isinstance(block, ToolResultBlock) and block.is_error for block in self.message.content)


def call_metadata(tool_call_id: str, tool: str, arguments: Any) -> dict[str, Any]:
    """The metadata of a tool message, as 10xGraph writes it."""
    return {
        "tool_call_id": tool_call_id,
        "function_name": tool,
        "function_argument": arguments if isinstance(arguments, dict) else {},
    }


def result_message(value: Any, *, tool_call_id: str, metadata: dict[str, Any]) -> Message:
    """The tool message for a return value.

    Text stays text; bytes become a data block; blocks and messages stay what they are; anything else is
    shown to the model as JSON.

    Raises:
        EncodingError: The value has no JSON form.
    """
    if isinstance(value, ToolResult):
        message = result_message(value.message, tool_call_id=tool_call_id, metadata=metadata)
        if value.is_error:
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    block.is_error, block.status = True, "failed"
        return message
    if isinstance(value, Command):
        value = value.message if value.message is not None else "ok"
    if isinstance(value, Message):
        return _as_answer(value, tool_call_id, metadata)
    if isinstance(value, bytes | bytearray | memoryview):
        block = DataBlock.model_validate(
            {"mime_type": "application/octet-stream", "data_base64": to_jsonable(bytes(value))}
        )
        return _answer([block.model_dump(mode="json")], tool_call_id, metadata)
    if isinstance(value, Block):
        return _answer([to_jsonable(value)], tool_call_id, metadata)
    if isinstance(value, list) and value and all(isinstance(item, Block) for item in value):
        return _answer([to_jsonable(item) for item in value], tool_call_id, metadata)
    text = clean_text(value) if isinstance(value, str) else dump_json(to_jsonable(value)).decode()
    return _answer(text, tool_call_id, metadata)


def _answer(output: Any, tool_call_id: str, metadata: dict[str, Any]) -> Message:
    block = ToolResultBlock(call_id=tool_call_id, output=output, status="completed")
    return Message.tool_message([block], meta=metadata)


def _as_answer(message: Message, tool_call_id: str, metadata: dict[str, Any]) -> Message:
    """The tool's own message, made an answer to this very call."""
    content: list[ContentBlock] = list(message.content)
    if not any(isinstance(block, ToolResultBlock) and block.call_id == tool_call_id for block in content):
        answer = ToolResultBlock(call_id=tool_call_id, output=message.text(), status="completed")
        content = [answer, *(block for block in content if block.type != "text")]
    return message.model_copy(update={"role": "tool", "content": content, "metadata": {**metadata, **message.metadata}})


def failure(error: str, *, tool_call_id: str, metadata: dict[str, Any], code: str | None = None) -> CallResult:
    """A failed call, said in a way that the model can act on."""
    text = clean_text(error)[:MAX_ERROR_CHARS]
    block = ToolResultBlock(call_id=tool_call_id, output=text, is_error=True, status="failed")
    return CallResult(message=Message.tool_message([block, ErrorBlock(message=text, code=code)], meta=metadata))


def from_envelope(envelope: Any, *, tool_call_id: str, metadata: dict[str, Any]) -> CallResult | None:
    """The finished call in a ledger row; ``None`` unless the row is well formed: only then it is a hit."""
    if not isinstance(envelope, dict) or "value" not in envelope:
        return None
    value, state, goto = envelope["value"], envelope.get("state", {}), envelope.get("goto")
    if not isinstance(state, dict) or not (goto is None or isinstance(goto, str)):
        return None
    try:
        if envelope.get("__kind__") == "message":
            message = Message.model_validate(value)
        elif envelope.get("__kind__") == "raw":
            message = result_message(value, tool_call_id=tool_call_id, metadata=metadata)
        else:
            return None
    except (ValidationError, EncodingError):
        return None
    if message.role != "tool":
        return None
    return CallResult(message=message, state=state, goto=goto)


def describe_error(error: BaseException) -> str:
    """An exception as one bounded line, with its type."""
    text = problems(error) if isinstance(error, ValidationError) else str(error)
    return clean_text(f"{type(error).__name__}: {text}" if text else type(error).__name__)[:MAX_ERROR_CHARS]
