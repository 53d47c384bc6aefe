"""Building a graph: nodes, edges, and the checks that can be made before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, get_type_hints

from ..command import Command
from ..errors import GraphDefinitionError
from ..limits import UNSET, Retry, Timeout, Unset
from ..state import END, START, AgentState
from ..tools.tool_node import ToolNode
from ..wire import MAX_NAME_BYTES
from .compiled_graph import CompiledGraph
from .edge import Edge
from .node import Node

NodeFunction = Callable[..., Any]


class StateGraph:
    """Collects nodes and edges; ``compile`` checks them and makes the graph that a worker hosts.

    Args:
        state: The class of the thread's state, ``AgentState`` or a subclass.
        name: The name by which runs refer to the graph.
    """

    def __init__(self, state: type[AgentState] | AgentState = AgentState, *, name: str = "agent") -> None:
        self._state = state if isinstance(state, type) else type(state)
        if not issubclass(self._state, AgentState):
            raise GraphDefinitionError(f"{self._state.__name__} is no AgentState; subclass AgentState")
        self._name = name
        self._nodes: dict[str, Node] = {}
        self._edges: list[Edge] = []

    def add_node(
        self,
        name: str | NodeFunction | ToolNode,
        node: NodeFunction | ToolNode | None = None,
        *,
        timeout: Timeout | Unset = UNSET,
        retry: Retry | None = None,
        task_queue: str | None = None,
    ) -> StateGraph:
        """Add a node: a function of ``(state, config)``, sync or async, or a ``ToolNode``.

        Args:
            name: Unique in the graph; may be left out for a named function.
            node: The function or ``ToolNode``.
            timeout: Deadline of the node, all its tools included, in seconds.
            retry: Repeat the node when it raises; not at all by default.
            task_queue: Run it on workers of their own.
        """
        if not isinstance(name, str):
            node, name = name, getattr(name, "__name__", "tools" if isinstance(name, ToolNode) else "")
        if node is None:
            raise GraphDefinitionError(f"node {name!r}: pass its function or ToolNode")
        if not name or name in (START, END) or ":" in name:
            raise GraphDefinitionError(f"{name!r} cannot name a node; use a name of your own without ':'")
        if any(len(given.encode()) > MAX_NAME_BYTES for given in (name, task_queue or "")):
            raise GraphDefinitionError(
                f"node {name[:50]!r}...: its name or task_queue has more than {MAX_NAME_BYTES} bytes; shorten it"
            )
        if name in self._nodes:
            raise GraphDefinitionError(f"node {name!r} is there already; give the second one another name")
        self._nodes[name] = Node.of(name, node, timeout=timeout, retry=retry, task_queue=task_queue)
        return self

    def add_edge(self, source: str, target: str) -> StateGraph:
        """After ``source`` comes ``target``. Several plain edges from one node: the first one counts."""
        if source == END:
            raise GraphDefinitionError(f"edge {source!r} -> {target!r}: nothing comes after END")
        self._edges.append(Edge(source, target))
        return self

    def add_conditional_edges(
        self,
        source: str,
        router: Callable[..., Any],
        path_map: Mapping[Hashable, str] | list[str] | None = None,
    ) -> StateGraph:
        """After ``source``, ``router(state)`` says where to go: a node's name, or a key of ``path_map``.

        Routers are quick functions of the state, sync or async, without effects: they may run again.
        """
        if not callable(router):
            raise GraphDefinitionError(f"conditional edge from {source!r}: {router!r} is not a function")
        paths: dict[Hashable, str] = (
            {name: name for name in path_map} if isinstance(path_map, list) else dict(path_map or {})
        )
        self._edges.append(Edge(source, None, router, paths or None))
        return self

    def set_entry_point(self, node: str) -> StateGraph:
        """Runs begin at ``node``."""
        return self.add_edge(START, node)

    def compile(
        self,
        *,
        name: str | None = None,
        interrupt_before: Iterable[str] = (),
        interrupt_after: Iterable[str] = (),
    ) -> CompiledGraph:
        """Check the graph and make it ready to host.

        Args:
            name: Instead of the one given to ``StateGraph``.
            interrupt_before: Nodes before which a run pauses until it is resumed.
            interrupt_after: Nodes after which it does.

        Raises:
            GraphDefinitionError: Names what is wrong and where.
        """
        graph_name = name or self._name
        before, after = frozenset(interrupt_before), frozenset(interrupt_after)
        problems = [*self._unknown_nodes(), *self._entry_problems(), *self._dead_ends()]
        problems += [
            f"an interrupt names {node!r}, which is no node" for node in sorted((before | after) - self._nodes.keys())
        ]
        if problems:
            raise GraphDefinitionError(f"graph {graph_name!r}: " + "; ".join(problems))
        return CompiledGraph(
            name=graph_name,
            state_class=self._state,
            nodes=dict(self._nodes),
            edges=tuple(self._edges),
            interrupt_before=before,
            interrupt_after=after,
        )

    def _unknown_nodes(self) -> list[str]:
        known = [START, END, *self._nodes]
        problems = []
        for edge in self._edges:
            for end in (edge.source, *edge.targets()):
                if end not in known:
                    problems.append(f"an edge from {edge.source!r} names {end!r}, which is no node; add it first")
            if START in edge.targets():
                problems.append(f"an edge from {edge.source!r} leads back to START; name the node instead")
        return problems

    def _entry_problems(self) -> list[str]:
        if not self._nodes:
            return ["it has no nodes; add_node at least one"]
        entries = [edge for edge in self._edges if edge.source == START]
        if not entries:
            return ["it has no entry point; call set_entry_point with the first node"]
        if len({edge.target for edge in entries if edge.target}) > 1:
            return ["it has more than one entry point; set_entry_point once"]
        return []

    def _dead_ends(self) -> list[str]:
        """A graph that can only go in circles. Whoever may go anywhere is trusted to find the end."""
        reached, frontier = {START}, [START]
        while frontier:
            source = frontier.pop()
            edges = [edge for edge in self._edges if edge.source == source]
            if source != START and (not edges or self._may_go_anywhere(source)):
                return []
            if any(edge.router and edge.paths is None for edge in edges):
                return []
            for target in {t for edge in edges for t in edge.targets()}:
                if target == END:
                    return []
                if target in self._nodes and target not in reached:
                    reached.add(target)
                    frontier.append(target)
        circle = ", ".join(sorted(reached - {START}))
        if not circle:
            return []
        return [
            f"END cannot be reached from {circle}; add an edge to END or a node without outgoing edges, "
            "or annotate the node that returns a Command: `-> Command`"
        ]

    def _may_go_anywhere(self, name: str) -> bool:
        function = self._nodes[name].function
        if function is None:
            return True  # a tool may return a Command, or hand over
        try:
            returned = get_type_hints(inspect.unwrap(function)).get("return")
        except Exception:  # unresolvable annotations say nothing
            returned = None
        if returned is not None:
            return Command.__name__ in str(returned) or returned is Any
        code = getattr(inspect.unwrap(function), "__code__", None)
        return code is None or Command.__name__ in code.co_names + code.co_freevars
