"""Runs that wait for people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tenxgraph_temporal import CompiledGraph, RunHandle

from .app import App, eventually


async def until_paused(run: RunHandle, count: int = 1) -> None:
    """Wait until the run waits for ``count`` answers."""

    async def enough() -> bool:
        return len(await run.interrupts()) == count

    await eventually(enough)


@asynccontextmanager
async def paused(
    app: App, graph: CompiledGraph, count: int = 1, **options: Any
) -> AsyncIterator[tuple[str, RunHandle]]:
    """A run of ``graph`` that waits for ``count`` answers, with a worker."""
    thread_id = app.thread()
    async with app.worker(graph):
        run = await app.start(graph.name, thread_id, **options)
        await until_paused(run, count)
        yield thread_id, run
