"""A model that says what it is told to: for tests and demos."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import GraphDefinitionError
from ..state import Message

ToolCalls = Sequence[dict[str, Any]]
"""The calls of one assistant message, each made by ``call``."""


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    """A tool call in OpenAI's form. Its empty id is filled in by ``ScriptedModel``."""
    return {"id": "", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


class ScriptExhausted(LookupError):
    """The conversation goes on where the script has ended."""


class ScriptedModel:
    """Replies in the order of a script.

    Which reply is next is read off the conversation: the number of assistant messages in it. So the model
    keeps nothing, and another process goes on where this one stopped.

    Args:
        replies: For each reply a text, a message, or a list of calls. Calls without an id are named
            ``call_1`` to ``call_n`` within each message, over and over, as many providers do.
        repeat: Begin the script anew after each user message, instead of once per thread.

    Raises:
        GraphDefinitionError: A reply is none of these; names its place in the script.
    """

    def __init__(self, replies: Sequence[str | Message | ToolCalls], *, repeat: bool = False) -> None:
        if isinstance(replies, str | Message):
            raise GraphDefinitionError(f"ScriptedModel: the script is a list of replies; write [{replies!r}]")
        self._replies = [_message(index, reply) for index, reply in enumerate(replies)]
        self._repeat = repeat

    async def __call__(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        """The next reply, as a new message.

        Raises:
            ScriptExhausted: The conversation has as many replies as the script.
        """
        said = 0
        for message in reversed(messages):
            if self._repeat and message.role == "user":
                break
            said += message.role == "assistant"
        if said >= len(self._replies):
            raise ScriptExhausted(
                f"the script has {len(self._replies)} replies, and the conversation asks for number {said + 1}; "
                "add a reply, or end the graph's loop before"
            )
        # A new id each time: a thread must not take the message of another one.
        return self._replies[said].model_copy(deep=True, update={"message_id": str(uuid.uuid4())})


def _message(index: int, reply: object) -> Message:
    if isinstance(reply, str):
        return Message.text_message(reply, role="assistant")
    if isinstance(reply, Message) and reply.role == "assistant":
        return reply
    if isinstance(reply, Sequence) and reply and all(isinstance(item, Mapping) for item in reply):
        calls = [{**item, "id": item.get("id") or f"call_{number}"} for number, item in enumerate(reply, start=1)]
        return Message(role="assistant", tools_calls=calls)
    raise GraphDefinitionError(
        f"ScriptedModel: reply {index} is {reply!r}; give text, an assistant Message, or a list of calls such as "
        '[call("charge_card", order_id="4821")]'
    )
