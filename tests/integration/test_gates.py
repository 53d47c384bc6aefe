"""Pauses before and after nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tenxgraph_temporal import StateGraph
from tenxgraph_temporal.runtime.client import RunFailed

from ..support.app import App
from ..support.graphs import agent
from ..support.pausing import paused

pytestmark = pytest.mark.usefixtures("keeps_workflows")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_pauses_at_nodes(app: App, when: str) -> None:
    visits: list[str] = []
    builder = StateGraph(name="g")
    for name in ("a", "b"):
        builder.add_node(name, lambda state, name=name: visits.append(name))
    builder.set_entry_point("a").add_edge("a", "b")
    graph = builder.compile(**{f"interrupt_{when}": ["b" if when == "before" else "a"]})  # type: ignore[arg-type]
    async with paused(app, graph) as (thread_id, run):
        assert visits == ["a"]
        meta = (await app.state(thread_id)).execution_meta
        assert meta.status == f"interrupted_{when}"
        assert meta.current_node == "b"
        await run.workflow.signal("resume", {"value": None})
        await run.result()
    assert visits == ["a", "b"]


async def test_pauses_per_run(app: App) -> None:
    graph = agent([], answer="hello")
    async with paused(app, graph, config={"interrupt_before": ["model"]}) as (thread_id, run):
        await run.answer(None)
        await run.result()
    assert (await app.state(thread_id)).context[-1].text() == "hello"


@pytest.mark.parametrize("wrong", ["model", ["modle"], ["model", 5], {"model": True}])
async def test_a_pause_that_cannot_be_made_is_refused(app: App, wrong: Any) -> None:
    """Where somebody wants to look first, going on all the same is the worst there is."""
    thread_id = app.thread()
    async with app.worker(agent([])):
        run = await app.start("agent", thread_id, config={"interrupt_before": wrong})
        with pytest.raises(RunFailed, match=r"is not a list of nodes of graph 'agent' \(model, tools\)") as failure:
            await run.result()
    assert failure.value.code == "GRAPH_003"
