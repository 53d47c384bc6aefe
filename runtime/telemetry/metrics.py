"""Counters and timers, under 10xGraph's names and ours. They go to whatever OpenTelemetry is set up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.metrics import Histogram, MeterProvider, get_meter

SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    900.0,
)
"""Bounds of the buckets of durations: from a no-op node to the default deadline of a slow one."""
BYTES = tuple(float(1024 * 4**power) for power in range(10))
"""Bounds of the buckets of sizes: 1 KiB to 256 MiB."""


class Metrics:
    """The instruments, made once per worker from a meter provider (the global one by default)."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        meter = get_meter("tenxgraph_temporal", meter_provider=provider)
        count = meter.create_counter

        def seconds(name: str) -> Histogram:
            return meter.create_histogram(name, unit="s", explicit_bucket_boundaries_advisory=SECONDS)

        self.node_executions = count("tenxgraph.node.executions")
        self.node_duration = seconds("tenxgraph.node.duration")
        self.node_timeouts = count("tenxgraph.node.timeouts")
        self.node_stopped = count("tenxgraph.node.stopped")
        self.node_errors = count("tenxgraph.node.errors")
        self.tool_calls = count("tenxgraph.tool.calls")
        self.tool_duration = seconds("tenxgraph.tool.duration")
        self.tool_timeouts = count("tenxgraph.tool.timeouts")
        self.tool_errors = count("tenxgraph.tool.errors")
        self.ledger_hits = count("tenxgraph.ledger.hits")
        self.ledger_misses = count("tenxgraph.ledger.misses")
        self.ledger_lost_races = count("tenxgraph.ledger.lost_races")
        self.ledger_unrecorded = count("tenxgraph.ledger.unrecorded")
        self.ledger_in_doubt = count("tenxgraph.ledger.in_doubt")
        self.ledger_read_failures = count("tenxgraph.ledger.read_failures")
        self.interrupts_opened = count("tenxgraph.interrupts.opened")
        self.interrupts_answered = count("tenxgraph.interrupts.answered")
        self.interrupts_expired = count("tenxgraph.interrupts.expired")
        self.interrupts_ignored = count("tenxgraph.interrupts.ignored")
        self.commits = count("tenxgraph.state.commits")
        self.stale_commits = count("tenxgraph.state.stale_commits")
        self.commit_replays = count("tenxgraph.state.commit_replays")
        self.state_bytes = meter.create_histogram(
            "tenxgraph.state.bytes", unit="By", explicit_bucket_boundaries_advisory=BYTES
        )
        self.cache_hits = count("tenxgraph.cache.hits")
        self.cache_misses = count("tenxgraph.cache.misses")
        self.cache_faults = count("tenxgraph.cache.faults")
        self.cache_lost_steps = count("tenxgraph.cache.lost_steps")

    def start_at_zero(self, tools: Iterable[Mapping[str, str]]) -> None:
        """Show what alerts look at as 0 before it first happens: an increase from nothing is none to Prometheus.

        ``tools`` are the attributes of each hosted tool.
        """
        for attributes in tools:
            for counter in (self.ledger_unrecorded, self.ledger_in_doubt, self.ledger_read_failures):
                counter.add(0, dict(attributes))
        for counter in (self.stale_commits, self.interrupts_ignored):
            counter.add(0)
