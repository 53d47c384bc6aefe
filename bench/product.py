"""The product on the same work: a scripted model of 0 ms and no-op tools, with the Postgres ledger and state."""

from __future__ import annotations

import json

from tenxgraph_temporal import END, AgentState, CompiledGraph, Message, StateGraph, ToolNode
from tenxgraph_temporal.runtime.tools.tool_node import Execution


class BenchState(AgentState):
    size: int = 0
    """How large the first model call makes ``blob``."""
    blob: str = ""


def work(turns: int, calls: int, execution: Execution = "activity") -> CompiledGraph:
    """A graph of the shape W(turns, calls)."""

    async def noop(n: int) -> str:
        return "ok"

    async def model(state: BenchState) -> Message:
        if len(state.blob) < state.size:
            state.blob = "x" * state.size
        said = sum(message.role == "assistant" for message in state.context)
        if said >= turns:
            return Message.text_message("done", role="assistant")
        asked = [
            {"id": f"call_{n}", "type": "function", "function": {"name": "noop", "arguments": json.dumps({"n": n})}}
            for n in range(calls)
        ]
        return Message(role="assistant", tools_calls=asked)

    builder = StateGraph(BenchState, name=f"w{turns}x{calls}-{execution}")
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([noop], execution=execution))
    builder.set_entry_point("model")
    builder.add_conditional_edges("model", lambda s: "tools" if s.context[-1].tools_calls else END, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile()
