"""Graphs for the telemetry tests; a worker process can serve them."""

from __future__ import annotations

import asyncio
import logging
import threading

from opentelemetry import trace

from tenxgraph_temporal import END, ModelNode, ScriptedModel, StateGraph, ToolNode
from tenxgraph_temporal import call as scripted_call

from .graphs import agent, call

logger = logging.getLogger("somebody.elses")

SECRET = "hunter2-secret"


async def talk(word: str) -> str:
    logger.info("async tool at work", extra={"mood": "good"})
    with trace.get_tracer("somebody.elses").start_as_current_span("inside talk"):
        pass
    await asyncio.to_thread(logger.info, "in a thread of the async tool")
    return f"{word} was said"


def shout(word: str) -> str:
    logger.info("sync tool at work in %s", threading.current_thread().name)
    with trace.get_tracer("somebody.elses").start_as_current_span("inside shout"):
        pass
    return f"{word} was shouted"


def fail(word: str) -> str:
    raise ValueError(f"no {word}, please")


talkative = agent(
    [talk, shout, fail],
    [call("talk", "call_1", word=SECRET), call("shout", "call_2", word=SECRET), call("fail", "call_3", word=SECRET)],
    name="talkative",
    answer=f"done with {SECRET}",
)

_tools = ToolNode([talk, shout], execution="batch")
_script = ScriptedModel([[scripted_call("talk", word=SECRET), scripted_call("shout", word=SECRET)], f"bye {SECRET}"])
_builder = StateGraph(name="chatty")
_builder.add_node("model", ModelNode(_script, tools=_tools))
_builder.add_node("tools", _tools)
_builder.set_entry_point("model")
_builder.add_conditional_edges("model", lambda state: "tools" if state.context[-1].tools_calls else END, ["tools", END])
_builder.add_edge("tools", "model")
chatty = _builder.compile()
