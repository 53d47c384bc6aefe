"""Graphs for a Temporal worker that somebody else owns: one line, ``plugins=[TenxGraphPlugin(...)]``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import WorkerConfig

from .activities import Host, build_activities
from .runtime.connect import with_our_models
from .runtime.encryption_keys import EncryptionKeys
from .runtime.errors import GraphDefinitionError
from .runtime.graph import CompiledGraph
from .runtime.settings import Settings
from .runtime.storage import Store
from .runtime.telemetry.interceptors import RunTelemetry
from .runtime.telemetry.tracing import Tracing
from .workflows import GraphRun

# A cancel reaches an activity with a heartbeat; the SDK's default would let it wait for up to a minute.
_HEARTBEAT_THROTTLE = timedelta(seconds=1)
_EAGER_ACTIVITIES = 100
_GRACEFUL_SHUTDOWN = timedelta(seconds=30)


class TenxGraphPlugin(SimplePlugin):
    """Registers the run loop, and the nodes and tools of ``graphs``, with a worker.

    Args:
        graphs: Compiled graphs with distinct names.
        store: An open store; it stays the caller's to close.
        keys: As of ``WirePlugin``; for a worker whose client has no such plugin.
        host_options: Further fields of ``Host``. ``metrics`` and ``tracing`` go to OpenTelemetry's global providers by
            default, if the process has set them up before.

    Raises:
        GraphDefinitionError: Two graphs have one name.
        SettingsError: ``TENXGRAPH_ENCRYPTION_KEYS`` is wrong.
    """

    def __init__(
        self,
        graphs: Iterable[CompiledGraph],
        store: Store,
        *,
        keys: EncryptionKeys | None = None,
        **host_options: Any,
    ) -> None:
        by_name: dict[str, CompiledGraph] = {}
        for graph in graphs:
            if graph.name in by_name:
                raise GraphDefinitionError(
                    f"two graphs are named {graph.name!r}; name one of them: StateGraph(..., name=...)"
                )
            by_name[graph.name] = graph
        self.host = Host.of(by_name, store, **{"tracing": Tracing.of(None), **host_options})
        self._converter = partial(with_our_models, keys=Settings.from_env().keys if keys is None else keys)
        metrics = self.host.metrics
        super().__init__(
            "tenxgraph_temporal.Graphs",
            data_converter=self._converter,
            interceptors=[RunTelemetry(self.host.tracing, lambda: metrics.interrupts_ignored.add(1))],
            workflows=[GraphRun],
            activities=build_activities(self.host),
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add our workflow and activities, and defaults without which stop and drain would be slow or rude."""
        client = config["client"]
        converter = self._converter(client.data_converter)
        if converter is not client.data_converter:
            settings: dict[str, Any] = {**client.config(), "data_converter": converter}
            config["client"] = Client(**settings)
        if config.get("max_heartbeat_throttle_interval", timedelta.max) > _HEARTBEAT_THROTTLE:
            config["max_heartbeat_throttle_interval"] = _HEARTBEAT_THROTTLE
            config["default_heartbeat_throttle_interval"] = _HEARTBEAT_THROTTLE
        if not config.get("graceful_shutdown_timeout"):
            config["graceful_shutdown_timeout"] = _GRACEFUL_SHUTDOWN
        config["max_eager_activity_reservations_per_workflow_task"] = _EAGER_ACTIVITIES
        return super().configure_worker(config)
