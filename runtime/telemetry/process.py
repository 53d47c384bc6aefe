"""The telemetry of a worker process: built once from the environment, flushed when the process drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from temporalio.runtime import LoggingConfig, LoggingFormat, Runtime, TelemetryConfig

from ..settings import Settings
from .exporters import build_meter_provider, build_tracer_provider
from .metrics import Metrics
from .temporal_metrics import TemporalMetrics
from .tracing import Tracing

logger = logging.getLogger(__name__)

_FLUSH_TIMEOUT = 10.0
"""Seconds that a drained worker waits for its exporters."""


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What the parts of a worker need; without exporters, all of it costs nothing."""

    metrics: Metrics
    tracing: Tracing | None = None
    runtime: Runtime | None = None
    """For the Temporal client; ``None`` is the SDK's own."""


@asynccontextmanager
async def process_telemetry(settings: Settings) -> AsyncIterator[Telemetry]:
    """Set up what OpenTelemetry's variables and ``settings`` ask for.

    The providers become the process's, so that spans and metrics of user code and of instrumentation go the same way.
    Providers that the process has already, such as those of ``opentelemetry-instrument``, are used instead.

    Raises:
        SettingsError: An exporter is missing or wrong; says which extra to install.
    """
    async with contextlib.AsyncExitStack() as stack:
        tracer_provider = trace.get_tracer_provider()
        if not isinstance(tracer_provider, TracerProvider) and (built := build_tracer_provider()):
            stack.push_async_callback(_flush, "spans", built.shutdown)
            trace.set_tracer_provider(built)
            tracer_provider = built
        meter_provider = metrics.get_meter_provider()
        if not isinstance(meter_provider, MeterProvider):
            own = build_meter_provider(prometheus_port=settings.metrics_port)
            if own is not None:
                stack.push_async_callback(_flush, "metrics", own.shutdown)
                metrics.set_meter_provider(own)
                meter_provider = own
        of_temporal = TemporalMetrics(meter_provider) if isinstance(meter_provider, MeterProvider) else None
        runtime = _runtime(of_temporal, as_json=settings.log_format == "json")
        if of_temporal is not None:
            await stack.enter_async_context(of_temporal)
        yield Telemetry(
            metrics=Metrics(meter_provider),
            tracing=Tracing.of(tracer_provider, content=settings.trace_content),
            runtime=runtime,
        )


def _runtime(of_temporal: TemporalMetrics | None, *, as_json: bool) -> Runtime | None:
    if of_temporal is None and not as_json:
        return None
    lines = LoggingConfig.default
    if as_json:
        lines = LoggingConfig(filter=lines.filter, format=LoggingFormat.JSON)
    buffer = of_temporal.buffer if of_temporal else None
    return Runtime(telemetry=TelemetryConfig(logging=lines, metrics=buffer, attach_service_name=False))


async def _flush(what: str, shutdown: Callable[[], object]) -> None:
    """Send what is left; a collector that does not answer holds nothing up for long."""
    try:
        await asyncio.wait_for(asyncio.to_thread(shutdown), _FLUSH_TIMEOUT)
    except TimeoutError:
        logger.warning("the last %s could not be exported within %g s", what, _FLUSH_TIMEOUT)
