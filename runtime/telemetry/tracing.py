"""Spans: when they are made, which ids they get, and what they may say."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError

from ..errors import TenxGraphError

HEADER = "_tracer-data"
"""The header in which Temporal's SDKs, in all languages, carry a trace's context."""

_PROPAGATOR = TraceContextTextMapPropagator()
_WANTED: ContextVar[tuple[int, int] | None] = ContextVar("tenxgraph_wanted_ids", default=None)

Attributes = Mapping[str, AttributeValue]


class _Ids(IdGenerator):
    """Random ids, except for a span whose ids were settled beforehand."""

    def __init__(self, random: IdGenerator) -> None:
        self.random = random

    def generate_trace_id(self) -> int:
        wanted = _WANTED.get()
        return wanted[0] if wanted else self.random.generate_trace_id()

    def generate_span_id(self) -> int:
        wanted = _WANTED.get()
        return wanted[1] if wanted else self.random.generate_span_id()

    def is_trace_id_random(self) -> bool:
        return self.random.is_trace_id_random()


@dataclass(frozen=True)
class Tracing:
    """How a worker traces. ``content``: spans may hold prompts, arguments, results and error texts."""

    tracer: Tracer
    content: bool = False

    @classmethod
    def of(cls, provider: TracerProvider | None, *, content: bool = False) -> Tracing | None:
        """Tracing to ``provider``, by default to the one that the process has set up; ``None`` if it has not."""
        tracer = (provider or trace.get_tracer_provider()).get_tracer("tenxgraph_temporal")
        if not isinstance(tracer, SdkTracer):  # nothing would be recorded
            return None
        if not isinstance(tracer.id_generator, _Ids):
            tracer.id_generator = _Ids(tracer.id_generator)  # our own tracer's; other ones are not touched
        return cls(tracer, content)

    def settled_span(
        self, name: str, *, run: tuple[str, str], key: str, parent: Context, start_time: int, attributes: Attributes
    ) -> Span:
        """A span whose ids follow from the rest, so that every replay of a workflow makes the same one.

        ``run`` is the id of a run's first execution and that of the one at hand. The first settles the trace, where
        there is no ``parent`` that does; so a reset stays in it.
        """
        first, this = run
        token = _WANTED.set((_hash(first, 16), _hash(f"{this}/{key}", 8)))
        try:
            return self.tracer.start_span(name, context=parent, start_time=start_time, attributes=attributes)
        finally:
            _WANTED.reset(token)

    @contextmanager
    def span(
        self, name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
    ) -> Iterator[Span]:
        """A span around the block, inside which ``child_span`` and ``content`` belong to it."""
        token = _TRACING.set(self)
        try:
            with self.tracer.start_as_current_span(
                name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
            ) as span:
                try:
                    yield span
                except BaseException as exc:
                    self.mark_failed(span, exc)
                    raise
        finally:
            _TRACING.reset(token)

    def mark_failed(self, span: Span, error: BaseException) -> None:
        """Say that ``error`` ended the span. Its text may quote arguments, so it counts as content."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            span.set_attribute("error.type", "cancelled")
            return
        span.set_attribute("error.type", error_type(error))
        span.set_status(StatusCode.ERROR, str(error) if self.content else None)
        if self.content:
            span.record_exception(error)


_TRACING: ContextVar[Tracing | None] = ContextVar("tenxgraph_tracing", default=None)


@contextmanager
def child_span(
    name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
) -> Iterator[Span]:
    """A span below the one around it; where nothing is traced, one that goes nowhere."""
    tracing = _TRACING.get()
    if tracing is None:
        yield INVALID_SPAN
        return
    with tracing.span(name, attributes, kind=kind) as span:
        yield span


def current_tracing() -> Tracing | None:
    """How the code around is traced."""
    return _TRACING.get()


def content(attribute: str, value: Callable[[], str]) -> None:
    """Put a prompt, arguments or a result on the current span, if that is switched on."""
    tracing = _TRACING.get()
    if tracing is not None and tracing.content:
        trace.get_current_span().set_attribute(attribute, value())


def error_type(error: BaseException) -> str:
    """An error's code, or else its class: never its text."""
    if isinstance(error, TenxGraphError):
        return error.code
    if isinstance(error, ApplicationError) and error.type:
        return error.type
    return type(error).__name__


def with_context(headers: Mapping[str, Payload], context: Context | None = None) -> Mapping[str, Payload]:
    """``headers`` with a trace's context, by default the current one; as they are where there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context)
    return {**headers, HEADER: PayloadConverter.default.to_payload(carrier)} if carrier else headers


def context_in(headers: Mapping[str, Payload]) -> Context:
    """The trace's context in ``headers``; an empty one where there is none, or none that can be read."""
    payload = headers.get(HEADER)
    try:
        carrier = PayloadConverter.default.from_payload(payload) if payload is not None else {}
    except Exception:  # whoever started the run may have written anything there
        carrier = {}
    if not isinstance(carrier, dict):
        return Context()
    return _PROPAGATOR.extract({name: value for name, value in carrier.items() if isinstance(value, str)}, Context())


def _hash(text: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest())
