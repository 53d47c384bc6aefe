"""A peer on the same work: LangGraph with Temporal's official integration, each node and tool call an activity.

Its durability is Temporal's alone: no ledger, no state outside the history.
"""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from temporalio import workflow
from temporalio.langgraph import LangGraphPlugin, graph

_OPTIONS = {
    "execute_in": "activity",
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=10),
}


class State(TypedDict, total=False):
    """The conversation, and what the scripted model still has to ask for."""

    messages: Annotated[list[dict[str, Any]], operator.add]
    turns: int
    calls: int
    blob: str
    size: int


class Call(TypedDict):
    """One tool call, as its node gets it."""

    call: dict[str, Any]


async def model(state: State) -> dict[str, Any]:
    """Ask for ``calls`` tools in each of ``turns`` messages, then answer."""
    said = sum(message["role"] == "assistant" for message in state["messages"])
    grown = {"blob": "x" * state["size"]} if len(state.get("blob", "")) < state["size"] else {}
    if said >= state["turns"]:
        return {"messages": [{"role": "assistant", "content": "done", "calls": []}]}
    # With ids that repeat, later turns would be given the results of the first: its cache goes by a node's input.
    calls = [{"id": f"call_{said}_{n}", "name": "noop", "arguments": {"n": n}} for n in range(state["calls"])]
    return {"messages": [{"role": "assistant", "content": "", "calls": calls}], **grown}


async def tool(given: Call) -> dict[str, Any]:
    """Do nothing."""
    return {"messages": [{"role": "tool", "content": "ok", "call_id": given["call"]["id"]}]}


async def after_model(state: State) -> Any:
    """A tool node for each call. Async, for a workflow has no threads."""
    return [Send("tool", {"call": call}) for call in state["messages"][-1]["calls"]] or END


@workflow.defn(name="LangGraph", sandboxed=False)
class LangGraphRun:
    """One run of the graph."""

    @workflow.run
    async def run(self, given: dict[str, int]) -> int:
        """Run to the end; how many messages there are then."""
        compiled = graph("work").compile()
        start = {"messages": [{"role": "user", "content": "go"}], **given}
        result = await compiled.ainvoke(start, {"recursion_limit": 1000})
        return len(result["messages"])


def plugin() -> LangGraphPlugin:
    """What its worker needs."""
    builder = StateGraph(State)
    builder.add_node("model", model, metadata=dict(_OPTIONS))
    builder.add_node("tool", tool, metadata=dict(_OPTIONS))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", after_model, ["tool", END])
    builder.add_edge("tool", "model")
    return LangGraphPlugin(graphs={"work": builder})
