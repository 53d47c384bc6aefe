"""OpenAI's chat completions, and the many servers that speak the same protocol, as a ``Model``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import GraphDefinitionError
from ..state import Message
from ._openai_wire import from_wire, to_wire

if TYPE_CHECKING:
    from openai import AsyncOpenAI

DEFAULT_TIMEOUT = 600.0
"""Seconds for one request; below a node's default of 900, so that the request's own error is seen."""

_OURS = ("messages", "tools", "stream", "n")
_ONLY_WITH_TOOLS = ("tool_choice", "parallel_tool_calls")


class OpenAIChat:
    """Ask a model over the ``openai`` package.

    Requests are not retried here: the node's ``Retry`` does that, and tries would multiply. A given client is
    therefore used with ``max_retries=0``.

    Args:
        model: The provider's name for it.
        client: An ``openai.AsyncOpenAI`` (or Azure's) to use, instead of one made on first use.
        base_url: Another server's address, such as ``http://localhost:8000/v1``.
        api_key: Read from ``OPENAI_API_KEY`` on the worker if it is not given; it never leaves the worker.
        timeout: Seconds for one request: by default 600, or what a given client says.
        keep_raw: Keep the provider's whole reply in ``Message.raw``, and so in the state.
        options: Sent with each request, such as ``temperature=0`` or ``reasoning_effort="low"``.

    Raises:
        ImportError: The extra ``openai`` is not installed.
        GraphDefinitionError: An option that is not the author's to set, or a client together with an address.
    """

    def __init__(
        self,
        model: str,
        *,
        client: AsyncOpenAI | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        keep_raw: bool = False,
        **options: Any,
    ) -> None:
        try:
            import openai
        except ImportError as exc:
            raise ImportError(
                "OpenAIChat needs the openai package: pip install 'tenxgraph-temporal[openai]'", name="openai"
            ) from exc
        for name in _OURS:
            if name in options:
                raise GraphDefinitionError(
                    f"OpenAIChat: {name}= cannot be set: a node sends one conversation and takes one whole reply"
                )
        if client is not None and (base_url is not None or api_key is not None):
            raise GraphDefinitionError("OpenAIChat: give base_url and api_key to the client, or no client")
        self._openai = openai
        self._given = client.with_options(max_retries=0) if client is not None else None
        self._own: tuple[asyncio.AbstractEventLoop, AsyncOpenAI] | None = None
        self._model = model
        self._base_url = base_url
        self._api_key = api_key
        self._timeout = timeout
        self._keep_raw = keep_raw
        self._options = options

    @property
    def model_name(self) -> str:
        """The provider's name for the model."""
        return self._model

    @property
    def provider_name(self) -> str:
        """Whose interface is spoken, for traces."""
        return "openai"

    def __repr__(self) -> str:
        return f"OpenAIChat({self._model!r})"

    async def __call__(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        """The provider's reply as an assistant message, with its token usage.

        Raises:
            openai.OpenAIError: As the package raises it: ``RateLimitError``, ``APITimeoutError``,
                ``BadRequestError`` and so on; for the node's ``Retry(on=...)`` to tell apart.
            ValueError: The reply has no choices.
        """
        request: dict[str, Any] = {**self._options, "model": self._model, "messages": to_wire(messages)}
        if tools:
            request["tools"] = list(tools)
        else:
            for name in _ONLY_WITH_TOOLS:  # refused by providers where there is nothing to choose from
                request.pop(name, None)
        if self._timeout is not None:
            request["timeout"] = self._timeout
        completion = await self._client().chat.completions.create(**request)
        audio = self._options.get("audio")
        message = from_wire(completion, audio_format=audio.get("format", "wav") if isinstance(audio, dict) else "wav")
        if self._keep_raw:
            message.raw = completion.model_dump(mode="json")
        return message

    def _client(self) -> AsyncOpenAI:
        if self._given is not None:
            return self._given
        # Its connections belong to an event loop; a process may have several, one after the other.
        loop = asyncio.get_running_loop()
        if self._own is None or self._own[0] is not loop:
            client = self._openai.AsyncOpenAI(
                base_url=self._base_url,
                api_key=self._api_key,
                timeout=DEFAULT_TIMEOUT,
                max_retries=0,
                # Unlike the package's own, it starts no task when it is collected, which may be inside a workflow.
                http_client=self._openai.DefaultAsyncHttpxClient(),
            )
            self._own = (loop, client)
        return self._own[1]
