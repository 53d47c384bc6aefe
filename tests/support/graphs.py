"""Graphs for tests. Those at module level can be served by a worker process."""

from __future__ import annotations

import asyncio
import json
import operator
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

from tenxgraph_temporal import END, AgentState, CompiledGraph, Message, StateGraph, Tool, ToolContext, ToolNode
from tenxgraph_temporal.runtime.tools.tool_node import Execution

from .world import do


def execution_of_tools() -> Execution:
    """How ``agent`` runs its tools unless told, here and in the worker processes; the fixture ``execution`` sets it."""
    return cast(Execution, os.environ.get("EXECUTION", "activity"))


def call(name: str, call_id: str = "", /, **arguments: Any) -> dict[str, Any]:
    """A tool call as a provider sends it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def asks(*calls: dict[str, Any]) -> Message:
    """An assistant message that asks for tools."""
    return Message(role="assistant", tools_calls=list(calls))


def wants_tools(state: AgentState) -> str:
    return "tools" if state.context[-1].tools_calls else END


def agent(
    tools: Sequence[Callable[..., Any] | Tool],
    *turns: Message | Sequence[dict[str, Any]],
    state: type[AgentState] = AgentState,
    name: str = "agent",
    answer: str = "done",
    once: bool = False,
    execution: Execution | None = None,
) -> CompiledGraph:
    """A model that asks for each turn's calls in order, then answers; anew for each user message, unless ``once``."""

    def model(state: AgentState) -> Message:
        said = 0
        for message in reversed(state.context):
            if message.role == "user" and not once:
                break
            said += message.role == "assistant"
        if said >= len(turns):
            return Message.text_message(answer, role="assistant")
        turn = turns[said]
        message = turn if isinstance(turn, Message) else asks(*turn)
        # A fresh message each time: a model never sends the same object twice.
        return Message.model_validate({**message.model_dump(exclude={"message_id"}), "message_id": None})

    return loop(model, tools, state=state, name=name, execution=execution)


def loop(
    model: Callable[..., Any],
    tools: Sequence[Callable[..., Any] | Tool],
    *,
    state: type[AgentState] = AgentState,
    name: str = "agent",
    execution: Execution | None = None,
) -> CompiledGraph:
    """A model and its tools in turn, until it asks for none."""
    builder = StateGraph(state, name=name)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode(tools, execution=execution or execution_of_tools()))
    builder.set_entry_point("model")
    builder.add_conditional_edges("model", wants_tools, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile()


# --- the story that is told to worker processes -------------------------------------------------------------


class StoryState(AgentState):
    notes: Annotated[list[str], lambda old, new: old + new] = []
    blob: str = ""


def world() -> str:
    return os.environ["OUTSIDE_WORLD"]


def lookup(order: str, context: ToolContext) -> dict[str, Any]:
    do(world(), "lookup", order=order, key=context.idempotency_key)
    return {"order": order, "cents": 1999}


async def charge(order: str, state: StoryState, context: ToolContext) -> str:
    await asyncio.to_thread(do, world(), "charge", order=order, key=context.idempotency_key)
    state.notes.append("charged")
    return f"charged {order}"


def receipt(order: str, state: StoryState, context: ToolContext) -> str:
    do(world(), "receipt", order=order, key=context.idempotency_key)
    state.notes.append("receipt sent")
    return f"receipt for {order}"


story = agent(
    [lookup, charge, receipt],
    [
        call("lookup", "call_1", order="4821"),
        call("charge", "call_2", order="4821"),
        call("receipt", "call_3", order="4821"),
    ],
    state=StoryState,
    name="story",
    answer="Your card was charged.",
)


def results(state: AgentState) -> list[str]:
    """What the model was told, call by call."""
    return [message.text() for message in state.context if message.role == "tool"]


class Counted(AgentState):
    count: int = 0
    log: Annotated[list[str], operator.add] = []


def line(*nodes: Any, state: type[AgentState] = AgentState, name: str = "line") -> Any:
    """Nodes one after the other."""
    builder = StateGraph(state, name=name)
    names = [f"n{i}" for i in range(len(nodes))]
    for node_name, node in zip(names, nodes, strict=True):
        builder.add_node(node_name, node)
    builder.set_entry_point(names[0])
    for source, target in zip(names, [*names[1:], END], strict=True):
        builder.add_edge(source, target)
    return builder.compile()


def texts(state: AgentState) -> list[str]:
    """The conversation, with who said what."""
    return [f"{message.role}: {message.text()}" for message in state.context]
