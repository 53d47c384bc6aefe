"""Servers and workers for a bench, and what a run costs them."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, get_args

import psutil
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from tenxgraph_temporal import CompiledGraph, GraphClient, TenxGraphPlugin, WirePlugin
from tenxgraph_temporal.runtime.devstack import DevStack, dev_stack
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore
from tenxgraph_temporal.runtime.storage.redis_cache import RedisCache
from tenxgraph_temporal.runtime.telemetry import Metrics
from tenxgraph_temporal.runtime.tools.tool_node import Execution

from .floor import Floor, Shape, node, tool
from .product import work

Run = Callable[[], Awaitable[WorkflowHandle[Any, Any]]]

PEER = "langgraph"
_LARGEST_FOR_PEERS = 1_000_000
"""Bytes of state; theirs crosses Temporal, which takes 2 MB at once, and hangs beyond."""


@dataclass(frozen=True)
class Work:
    """``turns`` messages with ``calls`` parallel calls each, then an answer; ``blob`` bytes of other state."""

    turns: int
    calls: int
    blob: int = 0

    @classmethod
    def parse(cls, text: str) -> Work:
        """``5x3``, or ``5x3@20000000``."""
        shape, _, blob = text.partition("@")
        turns, calls = shape.split("x")
        return cls(int(turns), int(calls), int(blob or 0))

    def __str__(self) -> str:
        return f"{self.turns}x{self.calls}" + (f"@{self.blob}" if self.blob else "")


@dataclass
class Database:
    """Statements that this process has sent to Postgres, and the bytes in them."""

    statements: int = 0
    bytes: int = 0

    async def watch(self, connection: Any) -> None:
        """Count what goes over ``connection``."""
        connection.add_query_logger(self._count)

    def _count(self, query: Any) -> None:
        self.statements += 1
        self.bytes += sum(len(a) for argument in query.args for a in _texts(argument))


def _texts(argument: Any) -> list[str]:
    items = argument if isinstance(argument, list) else [argument]
    return [item for item in items if isinstance(item, str)]


@dataclass
class Stage:
    """Workers of floor and product, on one set of servers."""

    client: Client
    stack: DevStack
    database: Database
    peers: bool
    """Whether the peers are installed and have workers."""

    def sides(self, work: Work) -> dict[str, Run]:
        """One run of each contestant."""

        async def floor() -> WorkflowHandle[Any, Any]:
            shape = Shape(work.turns, work.calls)
            handle = await self.client.start_workflow("Floor", shape, id=f"floor-{uuid.uuid4()}", task_queue="floor")
            await handle.result()
            return handle

        async def product(execution: str) -> WorkflowHandle[Any, Any]:
            graph = f"w{work.turns}x{work.calls}-{execution}"
            run = await GraphClient(self.client).start(
                graph, str(uuid.uuid4()), "go", state={"size": work.blob}, config={"recursion_limit": 1000}
            )
            await run.result()
            return run.workflow

        async def langgraph() -> WorkflowHandle[Any, Any]:
            given = {"turns": work.turns, "calls": work.calls, "size": work.blob}
            handle = await self.client.start_workflow("LangGraph", given, id=f"lg-{uuid.uuid4()}", task_queue=PEER)
            await handle.result()
            return handle

        sides: dict[str, Run] = {
            "floor": floor,
            "product": lambda: product("activity"),
            "batch": lambda: product("batch"),
            "local": lambda: product("local"),
        }
        if self.peers and work.blob <= _LARGEST_FOR_PEERS:
            sides["langgraph"] = langgraph
        return sides

    async def counts(self, run: Run) -> dict[str, int]:
        """Events and bytes of one run's history; statements and bytes that it sent to Postgres."""
        await run()  # caches and prepared statements are there
        before = (self.database.statements, self.database.bytes)
        history = await (await run()).fetch_history()
        return {
            "events": len(history.events),
            "history_bytes": sum(event.ByteSize() for event in history.events),
            "statements": self.database.statements - before[0],
            "statement_bytes": self.database.bytes - before[1],
        }

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that this process (worker and client), Temporal and Postgres have used."""
        return {
            "worker": time.process_time(),
            "temporal": _cpu(self.stack.temporal.pid),
            "postgres": _cpu(self.stack.postgres.pid),
        }


def _cpu(pid: int | None) -> float:
    process = psutil.Process(pid)
    used = 0.0
    for one in (process, *process.children(recursive=True)):
        times = one.cpu_times()
        used += times.user + times.system
    return used


def _langgraph_worker(client: Client, limits: dict[str, Any]) -> Worker:
    from .peer_langgraph import LangGraphRun, plugin  # only where it is installed

    return Worker(client, task_queue=PEER, workflows=[LangGraphRun], plugins=[plugin()], **limits)


@asynccontextmanager
async def stage(
    works: Sequence[Work],
    *,
    more: Sequence[CompiledGraph] = (),
    cache_bytes: int = 256 * 1024 * 1024,
    **worker_options: Any,
) -> AsyncIterator[Stage]:
    """A stage for ``works``: Temporal, Postgres and Valkey of its own, all workers in this process."""
    shapes = sorted({(one.turns, one.calls) for one in works})
    graphs = [work(*shape, how) for shape in shapes for how in get_args(Execution)] + [*more]
    database, metrics = Database(), Metrics()
    limits: dict[str, Any] = {
        "max_concurrent_activities": 200,
        "max_eager_activity_reservations_per_workflow_task": 100,
        **worker_options,
    }
    async with dev_stack() as stack:
        store = await PostgresStore.open(stack.postgres_dsn, pool_size=20, pool_options={"init": database.watch})
        await store.setup()
        cache = RedisCache.open(stack.redis_url, metrics=metrics)
        client = await Client.connect(stack.temporal_address, plugins=[WirePlugin()])
        plugin = TenxGraphPlugin(graphs, store, shared_cache=cache, metrics=metrics, cache_bytes=cache_bytes)
        floor_worker = Worker(client, task_queue="floor", workflows=[Floor], activities=[node, tool], **limits)
        product_worker = Worker(client, task_queue="tenxgraph", plugins=[plugin], **limits)
        async with AsyncExitStack() as workers:
            await workers.enter_async_context(floor_worker)
            await workers.enter_async_context(product_worker)
            peers = find_spec("langgraph") is not None and find_spec("temporalio.langgraph") is not None
            if peers:
                await workers.enter_async_context(_langgraph_worker(client, limits))
            yield Stage(client, stack, database, peers)
        await cache.close()
        await store.close()
