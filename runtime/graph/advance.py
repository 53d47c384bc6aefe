"""From one node to the next: what a commit decides, so that the workflow has nothing left to decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import GraphRecursionError, NodeError, TerminalError
from ..interrupt import answers_of
from ..limits import UNSET, Retry, RunConfig
from ..state import END, AgentState, ExecutionStatus, Message
from ..state.blocks import ToolResultBlock
from ..tools.handoff import handoff_target
from ..tools.result import call_metadata, result_message
from ..wire import InterruptRef, Limits, Position, ToolCallRef
from .compiled_graph import CompiledGraph
from .node import Node

_LONGEST_LOCAL = 900.0
"""Seconds that a local activity may take. After half an hour the server gives up the workflow task around it."""


async def advance(
    graph: CompiledGraph, state: AgentState, *, config: RunConfig, version: int, goto: str | None = None
) -> Position:
    """Finish the step of ``execution_meta.current_node`` and find the next one.

    Changes ``state.execution_meta``, and answers calls that a handoff leaves open. Never raises for what the
    graph does wrong: the step's outcome is kept, the state says why it failed, and so does the position.

    Args:
        graph: The graph.
        state: The state after the step, nodes' and tools' results joined.
        config: The run's configuration.
        version: The version that this state will have once committed.
        goto: Where a ``Command`` sends the run.
    """
    meta = state.execution_meta
    try:
        while True:
            source = meta.current_node
            target = await graph.following(state, source, goto)
            meta.step += 1
            meta.current_node = target  # before it may be one step too many: the next run goes on from there
            if target != END and meta.step >= config.recursion_limit:
                raise GraphRecursionError(
                    f"the run took {meta.step} steps without reaching END, at node {target!r}; "
                    "raise recursion_limit in the run's config, or give the graph a way out"
                )
            goto = _handoff(graph, state)
            if goto is None:
                position = position_at(graph, state, config=config, version=version)
                return _gated(graph, state, position, config=config, finished=source)
    except TerminalError as exc:
        return failed_position(state, exc, version=version)


def position_at(graph: CompiledGraph, state: AgentState, *, config: RunConfig, version: int) -> Position:
    """The position of a run that is about to do ``execution_meta.current_node``."""
    meta = state.execution_meta
    if meta.current_node == END:
        meta.complete()
        return Position(version=version, step=meta.step, node=END, next="end")
    meta.clear_interrupt()
    resumed = bool(answers_of(state))
    try:
        node = graph.node(meta.current_node)
        timeout = config.node_seconds(node.timeout)
        if node.tools is None:
            limits = _limits(timeout, node.retry, node.task_queue)
            return Position(
                version=version, step=meta.step, node=node.name, next="node", limits=limits, resumed=resumed
            )
        usual = Limits(timeout=config.tool_seconds(UNSET), step_timeout=timeout, task_queue=node.task_queue)
        message, calls = open_calls(state)
        if message is None:
            raise NodeError(
                f"tool node {node.name!r} was reached, but no message has open tool calls; route to it only "
                "after a message with tools_calls",
                code="NODE_002" if state.context else "NODE_003",
            )
        return Position(
            version=version,
            step=meta.step,
            node=node.name,
            next="tools",
            limits=Limits(timeout=timeout),
            message_id=message.message_id,
            resumed=resumed,
            calls=tuple(_call_ref(node, call, config, usual) for call in calls),
            call_limits=usual,
            batch=node.tools.execution in ("batch", "local"),
            local=node.tools.execution == "local" and timeout is not None and timeout <= _LONGEST_LOCAL,
            **_expected(graph, node.name, config),
        )
    except TerminalError as exc:
        return failed_position(state, exc, version=version)


def enter(graph: CompiledGraph, state: AgentState, *, config: RunConfig, version: int, gate: bool) -> Position:
    """The position of a run that begins at ``execution_meta.current_node``; ``gate``: pause before it if asked to."""
    position = position_at(graph, state, config=config, version=version)
    return _gated(graph, state, position, config=config, finished=None) if gate else position


def _gated(
    graph: CompiledGraph, state: AgentState, position: Position, *, config: RunConfig, finished: str | None
) -> Position:
    """``position``, paused where the graph or the run asks for a pause after or before a node."""
    if position.next not in ("node", "tools"):
        return position
    meta = state.execution_meta
    after = {*graph.interrupt_after, *config.names("interrupt_after")}
    before = {*graph.interrupt_before, *config.names("interrupt_before")}
    if finished is not None and finished in after:
        kind, node, status = "after", finished, ExecutionStatus.INTERRUPTED_AFTER
    elif position.node in before:
        kind, node, status = "before", position.node, ExecutionStatus.INTERRUPTED_BEFORE
    else:
        return position
    meta.set_interrupt(node, f"interrupt_{kind}: {node}", status)
    gate = InterruptRef(interrupt_id=f"{kind}-{node}-{position.step}", key=f"{kind}:{node}")
    return position.model_copy(update={"interrupts": (gate,)})


def failed_position(state: AgentState, error: TerminalError, *, version: int) -> Position:
    """The end of a run that cannot go on; the thread stays at its current node."""
    meta = state.execution_meta
    meta.fail(str(error))
    return Position(
        version=version,
        step=meta.step,
        node=meta.current_node,
        next="fail",
        code=error.code,
        error=error.text[:2000],
    )


def open_calls(state: AgentState) -> tuple[Message | None, list[dict[str, Any]]]:
    """The latest assistant message with tool calls, and those of its calls that have no answer yet."""
    for index in range(len(state.context) - 1, -1, -1):
        message = state.context[index]
        if message.role == "assistant" and message.tools_calls:
            answered = answered_calls(state.context[index + 1 :])
            unanswered = [call for call in message.tools_calls if call["id"] not in answered]
            return (message, unanswered) if unanswered else (None, [])
    return None, []


def answered_calls(messages: Sequence[Message]) -> set[str]:
    """The ids of the calls that ``messages`` answer."""
    return {
        block.call_id
        for message in messages
        if message.role == "tool"
        for block in message.content
        if isinstance(block, ToolResultBlock)
    }


def is_answered(state: AgentState) -> bool:
    """Whether the latest message with tool calls has an answer to each of them: its tool step is over."""
    return any(m.role == "assistant" and m.tools_calls for m in state.context) and open_calls(state)[0] is None


def insert_answers(state: AgentState, message_id: str, answers: Sequence[Message]) -> None:
    """Put tool messages behind the message that asked, before whatever was said since."""
    index = next(i for i, message in enumerate(state.context) if message.message_id == message_id) + 1
    while index < len(state.context) and state.context[index].role == "tool":
        index += 1
    state.context = [*state.context[:index], *answers, *state.context[index:]]


def call_name(call: dict[str, Any]) -> str:
    """The tool that a call asks for; empty if the model named none."""
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _handoff(graph: CompiledGraph, state: AgentState) -> str | None:
    """The node that an open call hands over to: then no tool of that message runs."""
    node = graph.nodes.get(state.execution_meta.current_node)
    if node is None or node.tools is None:
        return None
    message, calls = open_calls(state)
    target = next((t for call in calls if (t := handoff_target(call_name(call))) in graph.nodes), None)
    if message is None or target is None:
        return None
    answers = []
    for call in calls:
        name = call_name(call)
        handed = handoff_target(name) == target
        text = f"Handed over to {target}." if handed else f"Not run: the conversation was handed over to {target}."
        metadata = call_metadata(call["id"], name, {})
        answers.append(result_message(text, tool_call_id=call["id"], metadata=metadata))
    insert_answers(state, message.message_id, answers)
    return target


def _expected(graph: CompiledGraph, tool_node: str, config: RunConfig) -> dict[str, Any]:
    """The node after a tool step, if only plain edges lead there: then it needs no commit of its own in between."""
    edges = [edge for edge in graph.edges if edge.source == tool_node]
    target = edges[0].target if edges and not any(edge.router for edge in edges) else None
    node = graph.nodes.get(target) if target else None
    if node is None or node.tools is not None:
        return {}
    return {"then": node.name, "then_limits": _limits(config.node_seconds(node.timeout), node.retry, node.task_queue)}


def _call_ref(node: Node, call: dict[str, Any], config: RunConfig, usual: Limits) -> ToolCallRef:
    assert node.tools is not None
    name = call_name(call)
    if name not in node.tools:
        return ToolCallRef(tool_call_id=call["id"], tool=name, known=False)
    tool = node.tools[name]
    limits = _limits(config.tool_seconds(tool.timeout), tool.retry, tool.task_queue or node.task_queue)
    limits = limits.model_copy(update={"step_timeout": usual.step_timeout})
    return ToolCallRef(tool_call_id=call["id"], tool=name, limits=None if limits == usual else limits)


def _limits(timeout: float | None, retry: Retry | None, task_queue: str | None) -> Limits:
    attempts = Limits().max_attempts
    return Limits(
        timeout=timeout,
        max_attempts=max(attempts, retry.max_attempts) if retry else attempts,
        task_queue=task_queue,
    )
