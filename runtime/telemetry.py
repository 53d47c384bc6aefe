"""Counters and timers, under 10xGraph's names and ours. They go to whatever OpenTelemetry is set up to."""

from __future__ import annotations

from opentelemetry.metrics import MeterProvider, get_meter


class Metrics:
    """The instruments, made once per worker from a meter provider (the global one by default)."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        meter = get_meter("tenxgraph_temporal", meter_provider=provider)
        count = meter.create_counter
        self.node_executions = count("tenxgraph.node.executions")
        self.node_duration = meter.create_histogram("tenxgraph.node.duration", unit="s")
        self.node_timeouts = count("tenxgraph.node.timeouts")
        self.node_stopped = count("tenxgraph.node.stopped")
        self.node_errors = count("tenxgraph.node.errors")
        self.tool_calls = count("tenxgraph.tool.calls")
        self.tool_duration = meter.create_histogram("tenxgraph.tool.duration", unit="s")
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
        self.commits = count("tenxgraph.state.commits")
        self.stale_commits = count("tenxgraph.state.stale_commits")
        self.commit_replays = count("tenxgraph.state.commit_replays")
        self.state_bytes = meter.create_histogram("tenxgraph.state.bytes", unit="By")
        self.cache_hits = count("tenxgraph.cache.hits")
        self.cache_misses = count("tenxgraph.cache.misses")
        self.cache_faults = count("tenxgraph.cache.faults")
        self.cache_lost_steps = count("tenxgraph.cache.lost_steps")
