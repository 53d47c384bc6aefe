"""Messages in the form of OpenAI's chat completions, and back.

What that form cannot carry is never dropped in silence: the model reads a short text in its place, such as
``[video: https://...]``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ..state import Message, TokenUsages
from ..state.blocks import (
    AudioBlock,
    ContentBlock,
    DataBlock,
    DocumentBlock,
    ErrorBlock,
    ImageBlock,
    MediaRef,
    TextBlock,
    ToolResultBlock,
    VideoBlock,
)
from ..state.encoding import dump_json

if TYPE_CHECKING:
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletion

Wire = dict[str, Any]

_AUDIO_FORMATS = {"audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/x-wav": "wav", "audio/wave": "wav"}
_REASONING_FIELDS = ("reasoning_content", "reasoning")
_RETURNED = ("text", "image", "audio", "video", "document", "data")
_MAX_NAME_CHARS = 200
_NO_RESULT = "There is no result: the call was not carried out."


def to_wire(messages: Sequence[Message]) -> list[Wire]:
    """The conversation as providers accept it.

    Each call is followed at once by its result, in the order of the calls. A call without one is given a text
    that says so, and a result whose call is no longer there is left out: both would be refused. Media from
    tools follow in a user message, for a tool's message holds only text.
    """
    wire: list[Wire] = []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            wire.append(_assistant(message))
            if message.tools_calls:
                wire.extend(_results(message.tools_calls, messages[index + 1 :]))
        elif message.role != "tool":
            wire.append({"role": message.role, "content": _content(message.content, media=message.role == "user")})
    return wire


def _assistant(message: Message) -> Wire:
    wire: Wire = {"role": "assistant", "content": _content(message.content, media=False)}
    if message.tools_calls:
        wire["tool_calls"] = [_call(call) for call in message.tools_calls]
        wire["content"] = wire["content"] or None
        field = message.metadata.get("reasoning_field")
        if field in _REASONING_FIELDS:  # who sends it with calls may insist on getting it back
            wire[field] = message.reasoning or ""
    return wire


def _call(call: Wire) -> Wire:
    function = call.get("function") or {}
    arguments = function.get("arguments") or {}  # also for no arguments at all, servers parse the text
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    kept = {"extra_content": call["extra_content"]} if "extra_content" in call else {}
    return {
        "id": call.get("id") or "",
        "type": "function",
        "function": {"name": function.get("name", ""), "arguments": arguments},
        **kept,
    }


def _results(calls: list[Wire], later: Sequence[Message]) -> list[Wire]:
    """One tool message per call, then the media among the results."""
    found: dict[str, ToolResultBlock] = {}
    media: list[Wire] = []
    for message in later:
        if message.role == "assistant":
            break
        if message.role != "tool":
            continue
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                found.setdefault(block.call_id, block)
            elif (part := _media_part(block)) is not None:
                media.append(part)
    wire = []
    for call in calls:
        result = found.get(call.get("id") or "")
        text, parts = (_NO_RESULT, []) if result is None else _output(result)
        media.extend(parts)
        wire.append({"role": "tool", "tool_call_id": call.get("id") or "", "content": text})
    if media:
        wire.append({"role": "user", "content": [_text_part("From the tools:"), *media]})
    return wire


def _output(result: ToolResultBlock) -> tuple[str, list[Wire]]:
    """A result's text and its media."""
    output = result.output
    blocks = _blocks(output if isinstance(output, list) else [output])
    if blocks is None:
        text, media = output if isinstance(output, str) else dump_json(output).decode(), []
    else:
        text = "".join(map(_text, blocks))
        media = [part for block in blocks if (part := _media_part(block)) is not None]
    marked = result.is_error and not text.lower().startswith("error")
    return (f"Error: {text}" if marked else text), media


def _blocks(output: list[Any]) -> list[ContentBlock] | None:
    """Content blocks that a tool returned; ``None`` if it is data of some other form."""
    if not output or not all(isinstance(item, dict) and item.get("type") in _RETURNED for item in output):
        return None
    try:
        blocks = Message.model_validate({"role": "tool", "content": output}).content
    except ValidationError:
        return None
    # Data may look like a block; then it has keys of its own, which must not get lost.
    alike = all(item.keys() <= type(block).model_fields.keys() for item, block in zip(output, blocks, strict=True))
    return blocks if alike else None


def _content(blocks: Sequence[ContentBlock], *, media: bool) -> str | list[Wire]:
    """Text, or a list of parts where there are media among the blocks and the role may send them."""
    parts = [(_media_part(block) if media else None) or _text_part(_text(block)) for block in blocks]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return [part for part in parts if part.get("text") != ""]


def _text_part(text: str) -> Wire:
    return {"type": "text", "text": text}


def _text(block: ContentBlock) -> str:
    """What a block says, or what it is."""
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, ErrorBlock):
        return f"[error: {block.message}]"
    if isinstance(block, AudioBlock) and block.transcript:
        return block.transcript
    if isinstance(block, DocumentBlock) and (block.text or block.excerpt):
        return block.text or block.excerpt or ""
    if isinstance(block, ImageBlock | AudioBlock | VideoBlock | DocumentBlock):
        alt = block.alt_text if isinstance(block, ImageBlock) else None
        return f"[{block.type}: {alt or _where(block.media)}]"
    if isinstance(block, DataBlock):
        return f"[data: {block.mime_type}]"
    if block.type in ("tool_call", "remote_tool_call", "reasoning", "annotation", "tool_result"):
        return ""  # carried elsewhere in the message, or not made for a model
    return f"[{block.type}]"


def _where(media: MediaRef) -> str:
    name = media.url or media.filename or media.file_id or media.mime_type or "not shown"
    return name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "..."


def _media_part(block: ContentBlock) -> Wire | None:
    """A part of a user message, if there is one for such a block."""
    if isinstance(block, DataBlock):
        media = block.media or MediaRef(kind="data", data_base64=block.data_base64)
        media = media.model_copy(update={"mime_type": block.mime_type})
        if block.mime_type.startswith("image/"):
            return _image(media)
        return _audio(media) if block.mime_type.startswith("audio/") else None
    if isinstance(block, ImageBlock):
        return _image(block.media)
    if isinstance(block, AudioBlock):
        return _audio(block.media)
    if isinstance(block, DocumentBlock):
        return _file(block.media)
    return None


def _image(media: MediaRef) -> Wire | None:
    url = _data_url(media, "image/png") or media.url
    return {"type": "image_url", "image_url": {"url": url}} if url else None


def _audio(media: MediaRef) -> Wire | None:
    if not media.data_base64:
        return None
    mime_type = media.mime_type or "audio/wav"
    sound = _AUDIO_FORMATS.get(mime_type, mime_type.removeprefix("audio/"))
    return {"type": "input_audio", "input_audio": {"data": media.data_base64, "format": sound}}


def _file(media: MediaRef) -> Wire | None:
    if media.file_id:
        return {"type": "file", "file": {"file_id": media.file_id}}
    data = _data_url(media, "application/pdf")
    return {"type": "file", "file": {"filename": media.filename or "document", "file_data": data}} if data else None


def _data_url(media: MediaRef, default: str) -> str | None:
    return f"data:{media.mime_type or default};base64,{media.data_base64}" if media.data_base64 else None


def from_wire(completion: ChatCompletion, *, audio_format: str = "wav") -> Message:
    """The first choice as an assistant message.

    ``metadata`` has ``provider``, ``model``, ``response_id``, ``finish_reason``, and ``refusal`` with its text
    where the model refused: that text is then the content.

    Raises:
        ValueError: There is no choice in it.
    """
    if not getattr(completion, "choices", None):  # an error under status 200, or a web page
        detail = getattr(completion, "error", None) or completion
        raise ValueError(f"the provider's reply has no choices; is base_url right? {str(detail)[:500]}")
    choice = completion.choices[0]
    reply = choice.message
    content: list[ContentBlock] = [TextBlock(text=text) for text in (reply.content, reply.refusal) if text]
    if reply.audio is not None:
        media = MediaRef(kind="data", data_base64=reply.audio.data, mime_type=f"audio/{audio_format}")
        content.append(AudioBlock(media=media, transcript=reply.audio.transcript))
    metadata: dict[str, Any] = {
        "provider": "openai",
        "model": completion.model,
        "response_id": completion.id,
        "finish_reason": choice.finish_reason,
    }
    if reply.refusal:
        metadata["refusal"] = reply.refusal
    reasoning = None
    for field in _REASONING_FIELDS:
        value = getattr(reply, field, None)
        if isinstance(value, str) and value:
            reasoning, metadata["reasoning_field"] = value, field
            break
    calls = [call.model_dump(mode="json", exclude_none=True) for call in reply.tool_calls or ()]
    return Message(
        role="assistant",
        content=content,
        tools_calls=calls or None,
        reasoning=reasoning,
        usages=_usages(completion.usage) if completion.usage is not None else None,
        metadata=metadata,
    )


def _usages(usage: CompletionUsage) -> TokenUsages:
    prompt, reply = usage.prompt_tokens_details, usage.completion_tokens_details
    sent, made = usage.prompt_tokens or 0, usage.completion_tokens or 0  # not every server sends them all
    return TokenUsages(
        prompt_tokens=sent,
        completion_tokens=made,
        total_tokens=usage.total_tokens or sent + made,
        reasoning_tokens=(reply and reply.reasoning_tokens) or 0,
        cache_read_input_tokens=(prompt and prompt.cached_tokens) or 0,
        cache_creation_input_tokens=getattr(prompt, "cache_write_tokens", None) or 0,
        image_tokens=getattr(prompt, "image_tokens", None) or 0,
        audio_tokens=((prompt and prompt.audio_tokens) or 0) + ((reply and reply.audio_tokens) or 0),
    )
