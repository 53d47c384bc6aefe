"""What all activities of one worker share. Built once in ``worker.py`` and passed down."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from typing import Any, Protocol, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ..runtime.errors import NodeError, RetryableError, TenxGraphError, UnknownGraphError
from ..runtime.faults import Faults
from ..runtime.graph import CompiledGraph
from ..runtime.storage.contract import Store
from ..runtime.storage.redis_cache import RedisCache
from ..runtime.storage.snapshot import StateCache
from ..runtime.storage.thread_states import ThreadStates
from ..runtime.telemetry import Metrics
from ..runtime.telemetry.store_spans import with_spans
from ..runtime.telemetry.tracing import Tracing
from ..runtime.wire import RunTask
from .attempt import CutShort, is_shutdown
from .fresh_steps import FreshSteps
from .observe import observed, show_outcome

T = TypeVar("T")
Self = TypeVar("Self", bound="Hosted")
Task = TypeVar("Task", bound=RunTask)


class Hosted(Protocol):
    """What has activities among its methods."""

    _host: Host


@dataclass(frozen=True, kw_only=True)
class Host:
    """The graphs that a worker hosts and the store that they share."""

    graphs: Mapping[str, CompiledGraph]
    store: Store
    states: ThreadStates
    metrics: Metrics
    cancel_grace: timedelta = timedelta(seconds=5)
    """How long cancelled code may take to clean up before its attempt ends without it."""
    use_ledger: bool = True
    """Off only to show what happens without it."""
    worker: str = field(default_factory=lambda: f"{os.getpid()}@{socket.gethostname()}")
    """Who runs the attempts, as Temporal names this process too."""
    faults: Faults = field(default_factory=Faults)
    tracing: Tracing | None = None
    """``None`` makes no spans."""
    fresh: FreshSteps = field(default_factory=FreshSteps)

    @classmethod
    def of(
        cls,
        graphs: Mapping[str, CompiledGraph],
        store: Store,
        *,
        cache_bytes: int = 256 * 1024 * 1024,
        shared_cache: RedisCache | None = None,
        metrics: Metrics | None = None,
        faults: Faults | None = None,
        tracing: Tracing | None = None,
        **options: Any,
    ) -> Host:
        """A host with a state cache of its own, on top of the ``shared_cache`` if there is one."""
        metrics = metrics or Metrics()
        faults = faults or Faults()
        if tracing is not None:
            store = with_spans(store)
        metrics.start_at_zero(
            {"node": node.name, "tool": tool}
            for graph in graphs.values()
            for node in graph.nodes.values()
            if node.tools is not None
            for tool in node.tools.tools
        )
        cache = StateCache(cache_bytes)
        states = ThreadStates(store, cache=cache, shared=shared_cache, metrics=metrics, faults=faults)
        return cls(
            graphs=graphs, store=store, states=states, metrics=metrics, faults=faults, tracing=tracing, **options
        )

    def graph(self, name: str) -> CompiledGraph:
        """The graph of that name.

        Raises:
            UnknownGraphError: This worker does not host it.
        """
        try:
            return self.graphs[name]
        except KeyError:
            raise UnknownGraphError(
                f"this worker hosts no graph {name!r} (it hosts {', '.join(self.graphs)}); check the run's graph "
                "name and the task queue"
            ) from None


def temporal_failure(error: TenxGraphError) -> ApplicationError:
    """One of our errors as Temporal shows it: the code as its type, and no retry unless that can help."""
    return ApplicationError(error.text[:4000], type=error.code, non_retryable=not isinstance(error, RetryableError))


def boundary(method: Callable[[Self, Task], Awaitable[T]]) -> Callable[[Self, Task], Awaitable[T]]:
    """The edge between Temporal and an activity: the task's run in full on the way in, our errors as Temporal's on the
    way out, and what is seen of the attempt from outside.
    """

    @wraps(method)
    async def at_boundary(self: Self, task: Task) -> T:
        info = activity.info()
        run = task.run.resolved(workflow_id=info.workflow_id or "", workflow_run_id=info.workflow_run_id or "")
        task = task.model_copy(update={"run": run})
        try:
            with observed(self._host.tracing, task) as span:
                result = await method(self, task)
                show_outcome(span, result)
                return result
        except TenxGraphError as exc:
            raise temporal_failure(exc) from exc
        except asyncio.CancelledError:  # wherever it was: looking up, waiting for a claim, in a batch
            if is_shutdown():
                raise CutShort(info.activity_type) from None
            raise
        except SystemExit as exc:  # of a reducer, say; it would end the event loop
            raise temporal_failure(NodeError(f"{info.activity_type} raised {exc!r}")) from exc

    return at_boundary
