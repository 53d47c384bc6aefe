"""What is said to models, and a tool that they may call."""

from __future__ import annotations

from tenxgraph_temporal.runtime.state import Message
from tenxgraph_temporal.runtime.state.blocks import ContentBlock


def user(text: str = "hello") -> Message:
    return Message.text_message(text)


def results(*blocks: ContentBlock) -> Message:
    return Message.tool_message(list(blocks))


def look_up(order: str) -> str:
    """Look up an order."""
    return order


LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up an order.",
        "parameters": {
            "type": "object",
            "properties": {"order": {"type": "string"}},
            "required": ["order"],
            "additionalProperties": False,
        },
    },
}
