"""A checked graph: what a worker hosts, and how a run finds its way through it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RoutingError, UnknownGraphError
from ..state import END, START, AgentState
from ..tools.tool import Tool
from .edge import Edge
from .node import Node


@dataclass(frozen=True, kw_only=True)
class CompiledGraph:
    """Immutable; made by ``StateGraph.compile``."""

    name: str
    state_class: type[AgentState]
    nodes: dict[str, Node]
    edges: tuple[Edge, ...]
    interrupt_before: frozenset[str] = frozenset()
    interrupt_after: frozenset[str] = frozenset()

    def node(self, name: str) -> Node:
        """The node of that name.

        Raises:
            UnknownGraphError: The graph has none; a paused run may be older than the graph.
        """
        try:
            return self.nodes[name]
        except KeyError:
            raise UnknownGraphError(
                f"graph {self.name!r} has no node {name!r} (it has {', '.join(self.nodes)}); if the node was "
                "renamed, deploy a graph that still has it, or edit the thread's current node"
            ) from None

    def tool(self, node: str, tool: str) -> Tool:
        """The tool of that name in a tool node.

        Raises:
            UnknownGraphError: No such node or tool.
        """
        tools = self.node(node).tools
        if tools is None or tool not in tools:
            raise UnknownGraphError(f"graph {self.name!r}: node {node!r} has no tool {tool!r}")
        return tools[tool]

    async def next_node(self, state: AgentState, source: str) -> str:
        """Where the edges lead from ``source``.

        Conditional edges are asked in the order in which they were added, then the first plain edge counts;
        a node without one leads to ``END``.

        Raises:
            RoutingError: A router raised, or named a node that does not exist.
        """
        edges = [edge for edge in self.edges if edge.source == source]
        for edge in edges:
            if edge.router is not None:
                target = await edge.route(state)
                if target is not None:
                    return self.checked(target, f"the router after node {source!r}")
        return next((edge.target for edge in edges if edge.target), END)

    async def following(self, state: AgentState, source: str, goto: str | None) -> str:
        """Where a run goes from ``source``: where a ``Command`` sends it, else where the edges lead.

        Raises:
            RoutingError: There is no such node, or a router raised.
        """
        return self.checked(goto, f"the Command of node {source!r}") if goto else await self.next_node(state, source)

    def checked(self, target: str, who: str) -> str:
        """``target``, if the run can go there.

        Raises:
            RoutingError: It is no node of this graph.
        """
        if target != END and target not in self.nodes:
            raise RoutingError(
                f"{who} leads to {target!r}, which is no node of graph {self.name!r} ({', '.join(self.nodes)})"
            )
        return target

    async def entry(self, state: AgentState) -> str:
        """The first node of a run."""
        return await self.next_node(state, START)
