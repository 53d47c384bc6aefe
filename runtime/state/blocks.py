"""Content blocks: what a message is made of. Field for field as 10xGraph 0.10 writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag


class Block(BaseModel):
    """Base of all blocks. Non-finite floats are stored as the strings ``"NaN"`` and ``"Infinity"``."""

    model_config = ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64")


class MediaRef(Block):
    """Where media lives: a URL, a provider's file id, or inline base64 (small payloads only)."""

    kind: Literal["url", "file_id", "data"] = "url"
    url: str | None = None
    file_id: str | None = None
    data_base64: str | None = None
    mime_type: str | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    filename: str | None = None
    width: int | None = None
    height: int | None = None
    duration_ms: int | None = None
    page: int | None = None


class AnnotationRef(Block):
    """The source that an annotation points to."""

    url: str | None = None
    file_id: str | None = None
    page: int | None = None
    index: int | None = None
    title: str | None = None


class TextBlock(Block):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str
    annotations: list[AnnotationRef] = Field(default_factory=list)


class ImageBlock(Block):
    """An image; ``bbox`` is [x1, y1, x2, y2]."""

    type: Literal["image"] = "image"
    media: MediaRef
    alt_text: str | None = None
    bbox: list[float] | None = None


class AudioBlock(Block):
    """Audio; ``sample_rate`` in Hz."""

    type: Literal["audio"] = "audio"
    media: MediaRef
    transcript: str | None = None
    sample_rate: int | None = None
    channels: int | None = None


class VideoBlock(Block):
    """Video."""

    type: Literal["video"] = "video"
    media: MediaRef
    thumbnail: MediaRef | None = None


class DocumentBlock(Block):
    """A document, with its text where it is known."""

    type: Literal["document"] = "document"
    media: MediaRef
    text: str | None = None
    pages: list[int] | None = None
    excerpt: str | None = None


class DataBlock(Block):
    """Bytes of any type."""

    type: Literal["data"] = "data"
    mime_type: str
    data_base64: str | None = None
    media: MediaRef | None = None


class ToolCallBlock(Block):
    """A tool call shown as content."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    args: dict[str, Any] = Field(default_factory=dict)
    tool_type: str | None = None


class RemoteToolCallBlock(Block):
    """A call that a client has to carry out."""

    type: Literal["remote_tool_call"] = "remote_tool_call"
    id: str
    name: str
    args: dict[str, Any] = Field(default_factory=dict)
    tool_type: str = "remote"


class ToolResultBlock(Block):
    """The answer to one tool call."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    output: Any = None
    is_error: bool = False
    status: Literal["completed", "failed"] | None = None


class ReasoningBlock(Block):
    """A model's reasoning."""

    type: Literal["reasoning"] = "reasoning"
    summary: str
    details: list[str] | None = None


class AnnotationBlock(Block):
    """Citations and notes; ``spans`` are [start, end) character offsets."""

    type: Literal["annotation"] = "annotation"
    kind: Literal["citation", "note"] = "citation"
    refs: list[AnnotationRef] = Field(default_factory=list)
    spans: list[tuple[int, int]] | None = None


class ErrorBlock(Block):
    """An error shown as content."""

    type: Literal["error"] = "error"
    message: str
    code: str | None = None
    data: dict[str, Any] | None = None


class UnknownBlock(Block):
    """A block of a type that this version does not know, kept as it came."""

    model_config = ConfigDict(extra="allow")

    type: str


_KNOWN: tuple[type[Block], ...] = (
    TextBlock,
    ImageBlock,
    AudioBlock,
    VideoBlock,
    DocumentBlock,
    DataBlock,
    ToolCallBlock,
    RemoteToolCallBlock,
    ToolResultBlock,
    ReasoningBlock,
    AnnotationBlock,
    ErrorBlock,
)
_TYPES = frozenset(str(block.model_fields["type"].default) for block in _KNOWN)


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if kind in _TYPES else "unknown"


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[AudioBlock, Tag("audio")]
    | Annotated[VideoBlock, Tag("video")]
    | Annotated[DocumentBlock, Tag("document")]
    | Annotated[DataBlock, Tag("data")]
    | Annotated[ToolCallBlock, Tag("tool_call")]
    | Annotated[RemoteToolCallBlock, Tag("remote_tool_call")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[ReasoningBlock, Tag("reasoning")]
    | Annotated[AnnotationBlock, Tag("annotation")]
    | Annotated[ErrorBlock, Tag("error")]
    | Annotated[UnknownBlock, Tag("unknown")],
    Discriminator(_tag),
]
