"""Activities: the only place where user code runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import activity

from ..runtime.wire import (
    BatchOutcome,
    BatchTask,
    NodeTask,
    Position,
    ToolOutcome,
    ToolTask,
    batch_activity,
    node_activity,
    tool_activity,
)
from .answers import AnswerCommits
from .begin import RunBegin
from .close import RunClose
from .host import Host
from .nodes import NodeRunner
from .tool_steps import ToolSteps
from .tools import ToolRunner


def build_activities(host: Host) -> list[Callable[..., Any]]:
    """The activities of a worker that hosts ``host.graphs``: one type per node's and tool's name."""
    tool_steps, answers = ToolSteps(host), AnswerCommits(host)
    nodes, tools = NodeRunner(host, tool_steps), ToolRunner(host)

    async def run_node(task: NodeTask) -> Position:
        return await nodes.run(task)

    async def run_tool(task: ToolTask) -> ToolOutcome:
        return await tools.run(task)

    async def run_batch(task: BatchTask) -> BatchOutcome:
        return await tools.run_batch(task)

    hosted = [node for graph in host.graphs.values() for node in graph.nodes.values()]
    names: dict[str, Callable[..., Any]]
    names = {node_activity(node.name): run_node for node in hosted if node.tools is None}
    names |= {batch_activity(node.name): run_batch for node in hosted if node.tools is not None}
    names |= {tool_activity(tool): run_tool for node in hosted if node.tools for tool in node.tools.tools}
    return [
        RunBegin(host, tool_steps).begin,
        tool_steps.commit_tools,
        RunClose(host, tool_steps).close,
        answers.pause,
        answers.answer,
        answers.check,
        *(_named(function, name) for name, function in sorted(names.items())),
    ]


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    async def run(task: Any) -> Any:
        return await function(task)

    run.__annotations__ = dict(function.__annotations__)
    return activity.defn(name=name)(run)


__all__ = ["Host", "build_activities"]
