"""What was counted."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tenxgraph_temporal.runtime.telemetry import Metrics


class Counters:
    """Instruments for a worker, and what they show: ``counters["tenxgraph.cache.hits"]``."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.metrics = Metrics(MeterProvider(metric_readers=[self._reader]))

    def __getitem__(self, name: str) -> int:
        data = self._reader.get_metrics_data()
        if data is None:
            return 0
        return sum(
            int(getattr(point, "value", 0))
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        )
