"""A node that asks a model for the next message."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ..errors import GraphDefinitionError
from ..state import AgentState, Message
from ..telemetry.genai import chat_span, describe_reply


class Model(Protocol):
    """Anything that continues a conversation.

    It gets the messages in order, system message first, and the tools in OpenAI's function-calling form (empty
    if there are none). It returns the reply: an assistant message, or its text. What it raises fails the node,
    whose ``Retry`` decides about another attempt; so a client inside it should not retry on its own. Attributes
    ``model_name`` and ``provider_name``, where it has them, are shown in traces.
    """

    async def __call__(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message | str:
        """Continue the conversation."""
        ...


@runtime_checkable
class ToolSource(Protocol):
    """What knows its tools' schemas, such as a ``ToolNode``."""

    def schemas(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's function-calling form."""
        ...


class ModelNode:
    """Send the conversation to a model and add its reply.

    Args:
        model: An async callable; see ``Model``.
        tools: Offered to the model: a ``ToolNode``, read anew for each call, or schemas in OpenAI's form.
        system_prompt: Sent first, followed by the summary of what the context no longer holds. Not stored.

    Raises:
        GraphDefinitionError: The model is not async, or the tools are neither.
    """

    def __init__(
        self,
        model: Model,
        *,
        tools: ToolSource | Sequence[dict[str, Any]] | None = None,
        system_prompt: str | None = None,
    ) -> None:
        if not _is_async(model):
            raise GraphDefinitionError(
                f"ModelNode: {model!r} is not an async callable; write `async def model(messages, tools)`, with a "
                "blocking client inside `await asyncio.to_thread(...)`"
            )
        if tools is not None and not isinstance(tools, ToolSource):
            unfit = isinstance(tools, str | bytes) or not isinstance(tools, Sequence)
            if unfit or not all(isinstance(item, dict) for item in tools):
                raise GraphDefinitionError(
                    f"ModelNode: tools={tools!r} are no schemas; pass the ToolNode itself, or dicts in OpenAI's form"
                )
        self._model = model
        self._tools = tools
        self._system_prompt = system_prompt

    async def __call__(self, state: AgentState, config: dict[str, Any]) -> Message:
        """The model's reply, under an id that the conversation does not have yet.

        Raises:
            TypeError: The model returned something else than an assistant message or text.
        """
        tools = self._tools.schemas() if isinstance(self._tools, ToolSource) else list(self._tools or ())
        messages = [*self._preamble(state), *state.context]
        with chat_span(self._model, messages) as span:
            reply = await self._model(messages, tools)
            if isinstance(reply, str):
                reply = Message.text_message(reply, role="assistant")
            if isinstance(reply, Message):
                describe_reply(span, reply)
        if not isinstance(reply, Message) or reply.role != "assistant":
            what = f"a message of role {reply.role!r}" if isinstance(reply, Message) else repr(type(reply))
            raise TypeError(f"the model {self._model!r} returned {what}; return an assistant Message or text")
        if any(message.message_id == reply.message_id for message in state.context):
            # A known id would make it an old message: the reply would be dropped, and its calls replayed.
            return reply.model_copy(update={"message_id": str(uuid.uuid4())})
        return reply

    def _preamble(self, state: AgentState) -> list[Message]:
        # One system message: several are more than some providers take.
        summary = state.context_summary and f"Summary of the conversation so far:\n{state.context_summary}"
        text = "\n\n".join(filter(None, (self._system_prompt, summary)))
        return [Message.text_message(text, role="system")] if text else []


def _is_async(model: object) -> bool:
    return inspect.iscoroutinefunction(model) or inspect.iscoroutinefunction(
        getattr(model, "__call__", None)  # noqa: B004  # the method itself is what is asked about
    )
