"""What the semantic conventions for generative AI say about calls to models and tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import Span, SpanKind

from ..state import Message
from ..state.blocks import TextBlock, ToolResultBlock
from .tracing import child_span, content


@contextmanager
def chat_span(model: object, messages: Sequence[Message]) -> Iterator[Span]:
    """The span of one request to ``model``, which may say its ``model_name`` and ``provider_name``."""
    name = str(getattr(model, "model_name", "") or "")
    provider = str(getattr(model, "provider_name", "") or "")
    attributes = {
        "gen_ai.operation.name": "chat",
        **({"gen_ai.request.model": name} if name else {}),
        **({"gen_ai.provider.name": provider} if provider else {}),
    }
    with child_span(f"chat {name}".strip(), attributes, kind=SpanKind.CLIENT) as span:
        content("gen_ai.input.messages", lambda: _written(messages))
        yield span


def describe_reply(span: Span, reply: Message) -> None:
    """What a model answered and what that cost."""
    if not span.is_recording():
        return
    known = {
        "gen_ai.response.model": reply.metadata.get("model"),
        "gen_ai.response.id": reply.metadata.get("response_id"),
    }
    span.set_attributes({name: str(value) for name, value in known.items() if value})
    if reason := reply.metadata.get("finish_reason"):
        span.set_attribute("gen_ai.response.finish_reasons", [str(reason)])
    if reply.usages is not None:
        span.set_attribute("gen_ai.usage.input_tokens", reply.usages.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", reply.usages.completion_tokens)
        if reply.usages.cache_read_input_tokens:
            span.set_attribute("gen_ai.usage.cache_read.input_tokens", reply.usages.cache_read_input_tokens)
    content("gen_ai.output.messages", lambda: _written([reply]))


def _written(messages: Sequence[Message]) -> str:
    return json.dumps([{"role": message.role, "parts": _parts(message)} for message in messages], default=str)


def _parts(message: Message) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, TextBlock):
            parts.append({"type": "text", "content": block.text})
        elif isinstance(block, ToolResultBlock):
            parts.append({"type": "tool_call_response", "id": block.call_id, "response": block.output})
        else:
            parts.append({"type": block.type})
    for call in message.tools_calls or ():
        function = call.get("function") or {}
        parts.append(
            {
                "type": "tool_call",
                "id": call.get("id"),
                "name": function.get("name"),
                "arguments": function.get("arguments"),
            }
        )
    return parts
