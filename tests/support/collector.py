"""A stand-in for an OpenTelemetry collector: real HTTP and gRPC servers that decode what OTLP exporters send."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True)
class SeenSpan:
    """A span as it arrived. Ids are hexadecimal, times nanoseconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    failed: bool
    status_text: str
    attributes: dict[str, Any]
    events: tuple[str, ...]
    links: tuple[str, ...]
    resource: dict[str, Any]


@dataclass
class Collector:
    """What arrived."""

    address: str = ""
    spans: list[SeenSpan] = field(default_factory=list)
    metrics: dict[str, dict[tuple[tuple[str, Any], ...], Any]] = field(default_factory=lambda: defaultdict(dict))
    """The last data point by metric, and by resource's and own attributes."""
    scopes: dict[str, str] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)

    def receive(self, path: str, body: bytes) -> None:
        """One export over HTTP."""
        if path == "/v1/traces":
            self.add_traces(ExportTraceServiceRequest.FromString(body))
        elif path == "/v1/metrics":
            self.add_metrics(ExportMetricsServiceRequest.FromString(body))

    def add_traces(self, request: ExportTraceServiceRequest) -> None:
        self.bodies.append(request.SerializeToString())
        for of_resource in request.resource_spans:
            resource = _attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    self.spans.append(
                        SeenSpan(
                            name=span.name,
                            trace_id=span.trace_id.hex(),
                            span_id=span.span_id.hex(),
                            parent_id=span.parent_span_id.hex(),
                            start=span.start_time_unix_nano,
                            end=span.end_time_unix_nano,
                            failed=span.status.code == Status.STATUS_CODE_ERROR,
                            status_text=span.status.message,
                            attributes=_attributes(span.attributes),
                            events=tuple(event.name for event in span.events),
                            links=tuple(link.span_id.hex() for link in span.links),
                            resource=resource,
                        )
                    )

    def add_metrics(self, request: ExportMetricsServiceRequest) -> None:
        self.bodies.append(request.SerializeToString())
        for of_resource in request.resource_metrics:
            instance = _attributes(of_resource.resource.attributes)["service.instance.id"]
            for of_scope in of_resource.scope_metrics:
                for metric in of_scope.metrics:
                    self.scopes[metric.name] = of_scope.scope.name
                    data = getattr(metric, str(metric.WhichOneof("data")))
                    for point in data.data_points:
                        key = (("instance", instance), *sorted(_attributes(point.attributes).items()))
                        self.metrics[metric.name][key] = point

    def total(self, name: str, **attributes: Any) -> float:
        """The sum of a counter over the points that have ``attributes``; a histogram's count."""
        wanted = set(attributes.items())
        points = [point for key, point in self.metrics[name].items() if wanted <= set(key)]
        return float(
            sum(point.count if hasattr(point, "count") else point.as_int + point.as_double for point in points)
        )

    def says(self, text: str) -> bool:
        """Whether ``text`` is anywhere in what arrived."""
        return any(text.encode() in body for body in self.bodies)

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> SeenSpan:
        (span,) = self.named(name)
        return span

    def children(self, parent: SeenSpan) -> list[SeenSpan]:
        found = [span for span in self.spans if span.parent_id == parent.span_id and span.trace_id == parent.trace_id]
        return sorted(found, key=lambda span: span.start)

    def tree(self, root: SeenSpan) -> str:
        """The spans below ``root``, for a failing test to show."""

        def lines(span: SeenSpan, depth: int) -> Iterable[str]:
            yield f"{'  ' * depth}{span.name}"
            for child in self.children(span):
                yield from lines(child, depth + 1)

        return "\n".join(lines(root, 0))


def _attributes(pairs: Any) -> dict[str, Any]:
    def value_of(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return tuple(value_of(item) for item in value.array_value.values)
        return getattr(value, kind) if kind else None

    return {pair.key: value_of(pair.value) for pair in pairs}


@asynccontextmanager
async def otlp_collector() -> AsyncIterator[Collector]:
    """A collector that listens; ``address`` is for ``OTEL_EXPORTER_OTLP_ENDPOINT``."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.receive(self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


class _Traces(TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> Any:
        self._collector.add_traces(request)
        return ExportTraceServiceResponse()


class _Metrics(MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> Any:
        self._collector.add_metrics(request)
        return ExportMetricsServiceResponse()


@asynccontextmanager
async def grpc_collector() -> AsyncIterator[Collector]:
    """As ``otlp_collector``, over gRPC."""
    collector = Collector()
    server = grpc.aio.server()
    add_TraceServiceServicer_to_server(_Traces(collector), server)  # type: ignore[no-untyped-call]
    add_MetricsServiceServicer_to_server(_Metrics(collector), server)  # type: ignore[no-untyped-call]
    collector.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(None)
