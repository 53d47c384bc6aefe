"""Where telemetry goes, as OpenTelemetry's standard variables say: ``OTEL_TRACES_EXPORTER``,
``OTEL_METRICS_EXPORTER``, ``OTEL_EXPORTER_OTLP_*``, and so on. The SDK and its exporters read the rest themselves.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Literal

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from ..errors import SettingsError

Signal = Literal["traces", "metrics"]

_SERVICE = "tenxgraph-temporal"
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_EXTRA = "pip install 'tenxgraph-temporal[{}]'"


def wanted_exporters(signal: Signal, environ: Mapping[str, str]) -> list[str]:
    """The names in ``OTEL_<SIGNAL>_EXPORTER``; ``otlp`` where there are none but an endpoint is set; else nothing."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip()
    if not named:
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
        return ["otlp"] if any(environ.get(name) for name in endpoints) else []
    return [name.strip() for name in named.split(",") if name.strip() not in ("", "none")]


def build_tracer_provider() -> TracerProvider | None:
    """A provider with the exporters that the environment names, or ``None`` if it names none.

    Raises:
        SettingsError: An exporter is unknown, not installed, or cannot be made; names the remedy.
    """
    names = wanted_exporters("traces", os.environ)
    if not names:
        return None
    exporters = [_made("traces", name) for name in names]
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def build_meter_provider(*, prometheus_port: int = 0) -> MeterProvider | None:
    """Likewise for metrics; ``prometheus_port`` asks for a Prometheus endpoint on all interfaces."""
    names = wanted_exporters("metrics", os.environ)
    readers: list[MetricReader] = []
    try:
        for name in names:
            if name != "prometheus":
                readers.append(PeriodicExportingMetricReader(_made("metrics", name)))
            elif not prometheus_port:
                host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST") or "localhost"
                readers.append(_prometheus(host, _port("OTEL_EXPORTER_PROMETHEUS_PORT", 9464)))
        if prometheus_port:
            readers.append(_prometheus("0.0.0.0", prometheus_port))
    except BaseException:
        for reader in readers:
            reader.shutdown()
        raise
    return MeterProvider(readers, resource=_resource(), shutdown_on_exit=False) if readers else None


def _made(signal: Signal, name: str) -> Any:
    """An exporter by its standard name."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    entry, remedy = name, "install the package that provides it"
    if name == "otlp":
        own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
        protocol = own or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
        if protocol not in _OTLP:
            raise SettingsError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is not supported; set {' or '.join(_OTLP)}")
        entry, remedy = _OTLP[protocol], _EXTRA.format("otlp")
    found = next(iter(entry_points(group=f"opentelemetry_{signal}_exporter", name=entry)), None)
    if found is None:
        raise SettingsError(f"{variable}: no exporter {name!r} is installed; {remedy}")
    try:
        return found.load()()
    except ImportError as exc:
        raise SettingsError(f"{variable}: exporter {name!r} cannot be loaded ({exc}); {remedy}") from exc
    except Exception as exc:  # whatever the exporter finds wrong with its own variables
        raise SettingsError(f"{variable}: exporter {name!r} cannot be made: {type(exc).__name__}: {exc}") from exc


def _prometheus(host: str, port: int) -> MetricReader:
    """A reader that answers Prometheus on ``port`` until it is shut down."""
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as exc:
        remedy = _EXTRA.format("prometheus")
        raise SettingsError(f"an endpoint for Prometheus needs the extra 'prometheus': {remedy}") from exc

    class Endpoint(PrometheusMetricReader):
        """The reader and its server."""

        def __init__(self, registry: CollectorRegistry) -> None:
            super().__init__(scope_info_enabled=False, registry=registry)
            try:
                self._server, self._thread = start_http_server(port, host, registry=registry)
            except OSError as exc:
                raise SettingsError(f"port {port} for Prometheus cannot be listened on: {exc}") from exc

        def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
            """Stop answering."""
            self._server.shutdown()
            self._server.server_close()
            super().shutdown(timeout_millis, **kwargs)

    return Endpoint(CollectorRegistry())


def _port(variable: str, default: int) -> int:
    value = os.environ.get(variable) or default
    try:
        return int(value)
    except ValueError:
        raise SettingsError(f"{variable}={value!r} is not a port") from None


def _resource() -> Resource:
    """What the environment says about this process, under our name if it gives none."""
    found = Resource.create()
    named = not str(found.attributes[SERVICE_NAME]).startswith("unknown_service")
    ours = {} if named else {SERVICE_NAME: _SERVICE}
    if SERVICE_INSTANCE_ID not in found.attributes:
        ours[SERVICE_INSTANCE_ID] = f"{os.getpid()}@{socket.gethostname()}"
    return found.merge(Resource(ours))
