"""One message of a conversation, in 10xGraph's shape."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator

from .blocks import ContentBlock, TextBlock, ToolResultBlock

Role = Literal["user", "assistant", "system", "tool"]


class TokenUsages(BaseModel):
    """Tokens that one model reply cost."""

    model_config = ConfigDict(extra="allow")

    completion_tokens: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0
    reasoning_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    image_tokens: int | None = 0
    audio_tokens: int | None = 0


class Message(BaseModel):
    """A message: content blocks, the tool calls it asks for, its token usage.

    ``message_id`` is written once and never regenerated: together with a call's id it names a tool
    call for ever. ``content`` may be given as plain text. ``tools_calls`` has OpenAI's form:
    ``{"id", "type": "function", "function": {"name", "arguments": "<JSON text>"}}``.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64")

    message_id: str = Field(default_factory=lambda: str(uuid.uuid4()))
    role: Role
    content: list[ContentBlock] = Field(default_factory=list)
    delta: bool = False
    tools_calls: list[dict[str, Any]] | None = None
    reasoning: str | None = None
    timestamp: float | None = Field(default_factory=time.time)
    metadata: dict[str, Any] = Field(default_factory=dict)
    usages: TokenUsages | None = None
    raw: dict[str, Any] | None = None
    parsed_content: Any = None

    @field_validator("message_id", mode="before")
    @classmethod
    def _id_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) else value or str(uuid.uuid4())

    @field_validator("content", mode="before")
    @classmethod
    def _text_as_block(cls, value: Any) -> Any:
        if value is None:
            return []
        return [TextBlock(text=value)] if isinstance(value, str) else value

    @field_serializer("parsed_content", when_used="json")
    def _parsed_as_json(self, value: Any) -> Any:
        return value.model_dump(mode="json") if isinstance(value, BaseModel) else value

    @classmethod
    def text_message(cls, content: str, role: Role = "user", message_id: str | None = None) -> Message:
        """A message of one text block."""
        return cls.model_validate({"message_id": message_id, "role": role, "content": content})

    @classmethod
    def tool_message(
        cls, content: list[ContentBlock], message_id: str | None = None, meta: dict[str, Any] | None = None
    ) -> Message:
        """A message of role ``tool``; each call's answer is a ``ToolResultBlock`` in ``content``."""
        return cls(message_id=message_id or "", role="tool", content=content, metadata=meta or {})

    def text(self) -> str:
        """All text in the message: text blocks, and tool results in their text form."""
        parts = []
        for block in self.content:
            if isinstance(block, TextBlock):
                parts.append(block.text)
            elif isinstance(block, ToolResultBlock):
                output = block.output
                parts.append(output if isinstance(output, str) else json.dumps(output, default=str))
        return "".join(parts)
