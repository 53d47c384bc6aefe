"""The metrics of Temporal's SDK, beside ours: one provider, one exporter, one endpoint for both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from types import TracebackType

from opentelemetry.metrics import Meter, MeterProvider
from temporalio.runtime import (
    BUFFERED_METRIC_KIND_COUNTER,
    BUFFERED_METRIC_KIND_GAUGE,
    BufferedMetric,
    MetricBuffer,
    MetricBufferDurationFormat,
)

from .metrics import BYTES, SECONDS

logger = logging.getLogger(__name__)

_Record = Callable[[float, dict[str, str | int | float | bool]], None]

_BUFFERED = 100_000
"""Updates that may wait; the SDK drops what does not fit. A busy worker makes some thousands in a second."""
_INTERVAL = 1.0


class TemporalMetrics:
    """Moves what the SDK measures into a meter provider, while it is entered. ``buffer`` is for the SDK's runtime."""

    def __init__(self, provider: MeterProvider) -> None:
        self.buffer = MetricBuffer(_BUFFERED, MetricBufferDurationFormat.SECONDS)
        self._meter = provider.get_meter("temporalio")
        self._instruments: dict[str, _Record] = {}
        self._moving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> TemporalMetrics:
        self._moving = asyncio.create_task(self._keep_moving())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._moving is not None
        self._moving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._moving
        self.move()

    def move(self) -> None:
        """Take what was measured since the last time."""
        for update in self.buffer.retrieve_updates():
            metric = update.metric
            record = self._instruments.get(metric.name)
            if record is None:
                record = self._instruments[metric.name] = self._record_of(metric)
            record(update.value, dict(update.attributes))

    async def _keep_moving(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            self.move()

    def _record_of(self, metric: BufferedMetric) -> _Record:
        """The function that takes a value of ``metric``."""
        try:
            return _instrument(self._meter, metric)
        except Exception as exc:  # user code may have made a metric whose name OpenTelemetry does not take
            logger.warning("metric %r of Temporal's SDK cannot be exported: %s", metric.name, exc)
            return lambda value, attributes: None


def _instrument(meter: Meter, metric: BufferedMetric) -> _Record:
    unit, description = metric.unit or "", metric.description or ""
    if metric.kind == BUFFERED_METRIC_KIND_COUNTER:
        return meter.create_counter(metric.name, unit, description).add
    if metric.kind == BUFFERED_METRIC_KIND_GAUGE:
        return meter.create_gauge(metric.name, unit, description).set
    bounds = {"s": SECONDS, "By": BYTES, "bytes": BYTES}.get(unit)
    histogram = meter.create_histogram(metric.name, unit, description, explicit_bucket_boundaries_advisory=bounds)
    return histogram.record
