"""One test's corner of the real servers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, overload

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, Worker

from tenxgraph_temporal import AgentState, CompiledGraph, GraphClient, RunHandle, TenxGraphPlugin
from tenxgraph_temporal.examples.process import Process, worker_process
from tenxgraph_temporal.runtime.connect import with_our_models
from tenxgraph_temporal.runtime.devstack import DevStack
from tenxgraph_temporal.runtime.state.encoding import decode_state
from tenxgraph_temporal.runtime.storage.contract import Head, Store
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore
from tenxgraph_temporal.workflows import GraphRun

S = TypeVar("S", bound=AgentState)

_HOST_OPTIONS = ("cancel_grace", "use_ledger", "metrics", "shared_cache", "tracing")


class App:
    """A schema, a task queue, and workers on them, in this process or in processes of their own."""

    def __init__(self, *, stack: DevStack, client: Client, store: PostgresStore, logs: Path) -> None:
        self.stack = stack
        self.client = client
        self.store = store
        self.queue = f"q-{uuid.uuid4().hex[:12]}"
        self.graphs = GraphClient(client, task_queue=self.queue)
        self._logs = logs
        self.max_cached_workflows = 0
        """0 replays each workflow task from the beginning, so that nondeterminism shows at once."""
        self._handles: list[RunHandle] = []

    def thread(self) -> str:
        return f"t-{uuid.uuid4().hex[:12]}"

    @asynccontextmanager
    async def worker(self, *graphs: CompiledGraph, store: Store | None = None, **options: Any) -> AsyncIterator[Worker]:
        """A worker in this process."""
        host = {name: options.pop(name) for name in _HOST_OPTIONS if name in options}
        plugin = TenxGraphPlugin(graphs, store or self.store, **host)
        settings = {"max_cached_workflows": self.max_cached_workflows, "task_queue": self.queue, **options}
        async with Worker(self.client, plugins=[plugin], **settings) as worker:
            yield worker

    def process(self, *specs: str, **env: str) -> AbstractAsyncContextManager[Process]:
        """A worker process; ``env`` overrides its environment."""
        ours = {
            "TEMPORAL_ADDRESS": self.stack.temporal_address,
            "TENXGRAPH_DATABASE_URL": self.stack.postgres_dsn,
            "TENXGRAPH_DATABASE_SCHEMA": self.store.schema,
            "TENXGRAPH_TASK_QUEUE": self.queue,
        }
        return worker_process(*specs, env={**ours, **env}, log=self._logs / "workers.log")

    async def start(self, graph: str, thread_id: str, messages: Any = "hi", **options: Any) -> RunHandle:
        handle = await self.graphs.start(graph, thread_id, messages, **options)
        self._handles.append(handle)
        return handle

    async def run(self, graph: CompiledGraph, messages: Any = "hi", **options: Any) -> tuple[str, AgentState]:
        """Run on a fresh thread with a worker in this process; the thread and its state at the end."""
        thread_id = options.pop("thread_id", None) or self.thread()
        async with self.worker(graph):
            await (await self.start(graph.name, thread_id, messages, **options)).result()
        return thread_id, await self.state(thread_id, graph.state_class)

    async def head(self, thread_id: str) -> Head:
        head = await self.store.load_head(thread_id, None)
        assert head is not None, f"no thread {thread_id}"
        return head

    @overload
    async def state(self, thread_id: str) -> AgentState: ...
    @overload
    async def state(self, thread_id: str, cls: type[S]) -> S: ...
    async def state(self, thread_id: str, cls: type[AgentState] = AgentState) -> AgentState:
        head = await self.head(thread_id)
        assert head.fields is not None
        return decode_state(cls, head.fields)

    @asynccontextmanager
    async def commits_held(self, thread_id: str) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
        """Hold the lock that a commit on the thread takes, letting the ledger's records pass.

        Yields a wait for a statement of the test's schema that waits for a lock.
        """

        async def held_up() -> bool:
            query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1"
            return bool(await self.store.pool.fetchval(query, f'%"{self.store.schema}"%'))

        async with self.store.pool.acquire() as blocker, blocker.transaction():
            query = f'SELECT 1 FROM "{self.store.schema}".threads WHERE thread_id = $1 FOR NO KEY UPDATE'
            await blocker.execute(query, thread_id)
            yield lambda: eventually(held_up)

    async def replay_all(self) -> None:
        """Replay the history of every run that the test started, without nondeterminism."""
        histories = [await handle.workflow.fetch_history() for handle in self._handles]
        await replay(*histories, converter=self.client.data_converter)


async def replay(*histories: WorkflowHistory, converter: DataConverter | None = None) -> None:
    replayer = Replayer(workflows=[GraphRun], data_converter=with_our_models(converter))
    for history in histories:
        await replayer.replay_workflow(history)


def activities(history: WorkflowHistory) -> list[str]:
    """The activity types that a history scheduled, in order."""
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]


async def attempt_failures(run: RunHandle) -> list[str]:
    """The types of the last failures of the activities that are pending."""
    pending = (await run.workflow.describe()).raw_description.pending_activities
    return [type_ for one in pending if (type_ := one.last_failure.application_failure_info.type)]


async def eventually(check: Callable[[], Awaitable[Any]], *, timeout: float = 30) -> Any:
    """Wait until ``check`` returns something true."""
    async with asyncio.timeout(timeout):
        while True:
            found = await check()
            if found:
                return found
            await asyncio.sleep(0.02)
