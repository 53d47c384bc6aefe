"""A graph that is wrong says so when it is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from tenxgraph_temporal import END, START, AgentState, Command, Retry, StateGraph, ToolNode, tool
from tenxgraph_temporal.runtime.errors import GraphDefinitionError


def node(state: AgentState) -> None: ...


def goes_anywhere(state: AgentState) -> Command:
    return Command(goto=END)


def build(*edges: tuple[str, str], entry: str | None = "a", nodes: str = "ab") -> StateGraph:
    builder = StateGraph(name="g")
    for name in nodes:
        builder.add_node(name, node)
    if entry:
        builder.set_entry_point(entry)
    for source, target in edges:
        builder.add_edge(source, target)
    return builder


@pytest.mark.parametrize(
    ("builder", "problem"),
    [
        (StateGraph(name="g"), "graph 'g': it has no nodes"),
        (build(entry=None), "it has no entry point"),
        (build(("a", "nowhere")), "an edge from 'a' names 'nowhere', which is no node"),
        (build(("ghost", "a")), "an edge from 'ghost' names 'ghost', which is no node"),
        (build(entry="ghost"), "names 'ghost', which is no node"),
        (build(("a", "b"), ("b", "a")), "END cannot be reached from a, b"),
        (build(("a", START)), "leads back to START"),
        (build().add_edge(START, "b"), "more than one entry point"),
        (build(nodes="a").add_conditional_edges("a", lambda s: "x", {"x": "ghost"}), "names 'ghost'"),
    ],
)
def test_what_compile_refuses(builder: StateGraph, problem: str) -> None:
    with pytest.raises(GraphDefinitionError, match=problem):
        builder.compile()


@pytest.mark.parametrize(
    ("mistake", "problem"),
    [
        (lambda b: b.add_node("a", node), "node 'a' is there already"),
        (lambda b: b.add_node(END, node), "cannot name a node"),
        (lambda b: b.add_node("x:y", node), "cannot name a node"),
        (lambda b: b.add_node("x", 5), "5 is not a function"),
        (lambda b: b.add_node("x"), "pass its function"),
        (lambda b: b.add_node("x", lambda a, b: None), "parameter 'b' is not known"),
        (lambda b: b.add_node("x", ToolNode([]), retry=Retry()), "tools are retried one by one"),
        (lambda b: b.add_edge(END, "a"), "nothing comes after END"),
        (lambda b: b.add_conditional_edges("a", "tools"), "'tools' is not a function"),
        (lambda b: b.compile(interrupt_before=["ghost"]), "an interrupt names 'ghost'"),
        (lambda b: Retry(max_attempts=0), "attempts start at 1"),
    ],
)
def test_what_is_refused_at_once(mistake: Any, problem: str) -> None:
    with pytest.raises(GraphDefinitionError, match=problem):
        mistake(build())


def test_a_state_that_is_none() -> None:
    with pytest.raises(GraphDefinitionError, match="dict is no AgentState"):
        StateGraph(dict)  # type: ignore[arg-type]


def test_tools_of_one_name() -> None:
    with pytest.raises(GraphDefinitionError, match="two tools are named 'node'"):
        ToolNode([node, tool(name="node")(lambda: None)])
    with pytest.raises(GraphDefinitionError, match="5 is not a function"):
        ToolNode([5])  # type: ignore[list-item]
    with pytest.raises(GraphDefinitionError, match="in_doubt='maybe' is not known"):
        tool(name="x", in_doubt="maybe")(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "builder",
    [
        build(),
        build(("a", "b"), ("b", END)),
        build(("a", "b")).add_conditional_edges("b", lambda state: "a"),
        build(("a", "b"), ("b", "c"), nodes="ab").add_node("c", goes_anywhere).add_edge("c", "a"),
        build(("a", "b"), ("b", "a"), nodes="a").add_node("b", ToolNode([])),
    ],
)
def test_what_compile_accepts(builder: StateGraph) -> None:
    assert builder.compile(name="other").name == "other"


async def test_edges_are_asked_in_order() -> None:
    builder = build(("a", END))
    builder.add_conditional_edges("a", lambda state: None)
    builder.add_conditional_edges("a", lambda state: bool(state.context_summary), {True: "b"})
    graph = builder.compile()
    assert await graph.next_node(AgentState(), "a") == END
    assert await graph.next_node(AgentState(context_summary="x"), "a") == "b"
    assert await graph.next_node(AgentState(), "b") == END
    assert await graph.entry(AgentState()) == "a"
