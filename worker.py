"""The worker: ``python worker.py my_agent:graph [more:graphs]``. Connects, registers, serves, drains."""

from __future__ import annotations

if __name__ == "__main__":  # run as a file: hand over to the installed package, whose imports are relative
    import sys

    from tenxgraph_temporal import worker

    worker.leave(worker.main())

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NoReturn

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig

from .plugin import TenxGraphPlugin
from .runtime import event_loop
from .runtime.connect import connect
from .runtime.errors import GraphDefinitionError, SchemaError, TenxGraphError
from .runtime.faults import Faults
from .runtime.graph import CompiledGraph, StateGraph
from .runtime.health import Check, Health, serve_health
from .runtime.settings import Settings
from .runtime.storage import Store, open_store
from .runtime.storage.redis_cache import RedisCache
from .runtime.telemetry.logs import set_up_logging
from .runtime.telemetry.process import Telemetry, process_telemetry
from .runtime.telemetry.store_spans import watch_statements

logger = logging.getLogger(__name__)

_ACTIVITY_POLLS = 2
"""Open polls for activities. Each poll of a frozen process may swallow one attempt at a step before the server gives up
on it, so there must be fewer of them than a step has attempts."""


def load_graph(spec: str) -> CompiledGraph:
    """The graph that ``module:attribute`` names; the working directory is on the path.

    Raises:
        GraphDefinitionError: It cannot be imported, or is no graph; says why.
    """
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise GraphDefinitionError(f"{spec!r} is not of the form module:attribute, e.g. my_agent:graph")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except TenxGraphError as exc:
        raise GraphDefinitionError(f"{spec}: {exc.text}") from exc
    except Exception as exc:
        raise GraphDefinitionError(f"{spec} cannot be imported: {type(exc).__name__}: {exc}") from exc
    found = getattr(module, attribute, None)
    if isinstance(found, StateGraph):
        return found.compile()
    if not isinstance(found, CompiledGraph):
        has = "is a " + type(found).__name__ if hasattr(module, attribute) else "does not exist"
        raise GraphDefinitionError(f"{spec}: {attribute!r} {has}; a compiled StateGraph is expected")
    return found


def build_worker(
    client: Client,
    graphs: Sequence[CompiledGraph],
    store: Store,
    settings: Settings,
    telemetry: Telemetry,
    *,
    shared_cache: RedisCache | None = None,
) -> Worker:
    """A worker that hosts ``graphs`` on ``store``; not yet running."""
    plugin = TenxGraphPlugin(
        graphs,
        store,
        keys=settings.keys,
        cache_bytes=settings.state_cache_bytes,
        shared_cache=shared_cache,
        cancel_grace=settings.cancel_grace,
        use_ledger=settings.ledger,
        faults=Faults.parse(settings.faults),
        metrics=telemetry.metrics,
        tracing=telemetry.tracing,
    )
    return Worker(
        client,
        task_queue=settings.task_queue,
        plugins=[plugin],
        max_concurrent_activities=settings.max_concurrent_activities,
        max_concurrent_activity_task_polls=_ACTIVITY_POLLS,
        graceful_shutdown_timeout=settings.graceful_shutdown_timeout,
        deployment_config=deployment_of(settings),
    )


def deployment_of(settings: Settings) -> WorkerDeploymentConfig | None:
    """How the worker takes part in Temporal's worker versioning, if it does."""
    if not settings.build_id:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=settings.deployment_name, build_id=settings.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior[settings.versioning_behavior.upper()],
    )


class _Leavable(ThreadPoolExecutor):
    """``asyncio.to_thread``'s threads; one that hangs does not keep a drained worker from ending."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave what still runs to the end of the process."""
        super().shutdown(wait=False, cancel_futures=True)


def leave(code: int) -> NoReturn:
    """End the process at once: no thread of user code holds it up, and the Temporal SDK's own cannot abort it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def serve(graphs: Sequence[CompiledGraph], settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain: running steps get ``graceful_shutdown_timeout`` to finish.

    Raises:
        TenxGraphError: A setting is wrong, or a server cannot be reached.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_Leavable())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        telemetry = await stack.enter_async_context(process_telemetry(settings))
        store = await open_store(settings, on_connect=watch_statements if telemetry.tracing else None)
        stack.push_async_callback(store.close)
        try:
            await store.check()
        except SchemaError:  # a role that may not change the schema needs none where it is up to date
            await store.setup()
        client = await connect(settings, runtime=telemetry.runtime)
        redis_url = settings.redis_url.get_secret_value()
        shared_cache = RedisCache.open(redis_url, metrics=telemetry.metrics) if redis_url else None
        if shared_cache is not None:
            stack.push_async_callback(shared_cache.close)
        worker = build_worker(client, graphs, store, settings, telemetry, shared_cache=shared_cache)
        await stack.enter_async_context(worker)
        while not worker.is_running:  # noqa: ASYNC110  # its task is made, and has yet to begin
            await asyncio.sleep(0.01)
        if settings.health_port:
            checks: dict[str, Check] = {"temporal": client.service_client.check_health, "database": store.check}
            health = Health(lambda: worker.is_running, checks)
            await stack.enter_async_context(serve_health(settings.health_port, health))
        names = ", ".join(graph.name for graph in graphs)
        logger.info("serving %s on task queue %s", names, settings.task_queue)
        print(f"worker ready: {names} on task queue {settings.task_queue}", flush=True)  # noqa: T201
        await stop.wait()
        logger.info("draining")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="worker.py", description="Host agent graphs on Temporal. Settings: TENXGRAPH_* and TEMPORAL_*."
    )
    parser.add_argument("graphs", nargs="+", metavar="module:graph", help="a compiled StateGraph")
    options = parser.parse_args(arguments)
    try:
        settings = Settings.from_env()
        set_up_logging(level=settings.log_level, as_json=settings.log_format == "json")
        event_loop.run(serve([load_graph(spec) for spec in options.graphs], settings))
    except TenxGraphError as exc:
        print(f"worker: {exc}", file=sys.stderr)  # noqa: T201
        return 1
    return 0
