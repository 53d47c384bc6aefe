"""A node: how its function is called, and what its return value does to the state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from ..command import Command
from ..errors import GraphDefinitionError, NodeError, problems
from ..limits import UNSET, Retry, Timeout, Unset
from ..state import AgentState, Message, add_messages
from ..tools.context import RunContext
from ..tools.tool_node import ToolNode


@dataclass(frozen=True, kw_only=True)
class Node:
    """Either ``function`` or ``tools`` is set. ``arguments`` maps the function's parameters to what they get."""

    name: str
    function: Callable[..., Any] | None = None
    tools: ToolNode | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    is_async: bool = False
    timeout: Timeout | Unset = UNSET
    retry: Retry | None = None
    task_queue: str | None = None

    @classmethod
    def of(
        cls,
        name: str,
        target: Callable[..., Any] | ToolNode,
        *,
        timeout: Timeout | Unset,
        retry: Retry | None,
        task_queue: str | None,
    ) -> Node:
        """Make a node of a function or a ``ToolNode``."""
        if isinstance(target, ToolNode):
            if retry is not None:
                raise GraphDefinitionError(f"node {name!r}: tools are retried one by one; use @tool(retry=...)")
            if target.execution == "local" and task_queue is not None:
                raise GraphDefinitionError(
                    f"node {name!r} has a task_queue of its own, but its ToolNode has execution='local', which runs "
                    "where the graph does; use execution='batch', or leave out the task_queue"
                )
            return cls(name=name, tools=target, timeout=timeout, task_queue=task_queue)
        if not callable(target):
            raise GraphDefinitionError(f"node {name!r}: {target!r} is not a function or ToolNode")
        is_async = inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
            getattr(target, "__call__", None)  # noqa: B004  # the method itself is what is asked about
        )
        return cls(
            name=name,
            function=target,
            arguments=_arguments(name, target),
            is_async=is_async,
            timeout=timeout,
            retry=retry,
            task_queue=task_queue,
        )

    def bind(self, state: AgentState, config: dict[str, Any], context: RunContext) -> dict[str, Any]:
        """The keyword arguments for one call."""
        values = {"state": state, "config": config, "context": context}
        return {parameter: values[kind] for parameter, kind in self.arguments.items()}


def _arguments(name: str, function: Callable[..., Any]) -> dict[str, str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as exc:
        raise GraphDefinitionError(f"node {name!r}: the signature of {function!r} cannot be read: {exc}") from exc
    try:
        hints = get_type_hints(inspect.unwrap(function))
    except Exception:  # unresolvable annotations: names decide
        hints = {}
    given: dict[str, str] = {}
    for parameter in parameters:
        hint = hints.get(parameter.name)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if isinstance(hint, type) and issubclass(hint, RunContext):
            given[parameter.name] = "context"
        elif parameter.name in ("state", "config"):
            given[parameter.name] = parameter.name
        elif parameter.default is parameter.empty:
            if "state" in given.values():
                raise GraphDefinitionError(
                    f"node {name!r}: parameter {parameter.name!r} is not known; a node takes state, config and "
                    "a RunContext"
                )
            given[parameter.name] = "state"  # the one free parameter of a node is its state
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise GraphDefinitionError(f"node {name!r}: parameter {parameter.name!r} is positional-only")
    return given


def apply_result(node: str, state: AgentState, result: Any) -> tuple[AgentState, str | None]:
    """Join a node's return value into ``state``, which the node may also have changed in place.

    Returns:
        The new state, and the node that a ``Command`` sends the run to.

    Raises:
        NodeError: The value is none that a node may return, or does not fit the state.
    """
    goto = None
    if isinstance(result, Command):
        result, goto = result.update, result.goto
    try:
        return _joined(state, result), goto
    except (KeyError, TypeError, ValueError) as exc:
        raise NodeError(f"node {node!r} returned what its state cannot take: {problems(exc)}") from exc


def _joined(state: AgentState, result: Any) -> AgentState:
    if result is None or result is state:
        return state
    if isinstance(result, AgentState):
        # A state of the node's own making: its messages are found by id, its set fields replace.
        for name in result.model_fields_set - {"context", "execution_meta"}:
            setattr(state, name, getattr(result, name))
        state.context = add_messages(state.context, result.context)
        return state
    if isinstance(result, dict):
        updates = dict(result)
        if "messages" in updates and "messages" not in type(state).model_fields:
            updates["context"] = updates.pop("messages")
        if "context" in updates:
            updates["context"] = _messages(updates["context"])
        if "execution_meta" in updates:
            raise KeyError("execution_meta is written by the runtime; use Command(goto=...) to steer")
        state.apply(updates)
        return state
    state.context = add_messages(state.context, _messages(result))
    return state


def _messages(value: Any) -> list[Message]:
    items = value if isinstance(value, list | tuple) else [value]
    return [
        item
        if isinstance(item, Message)
        else Message.text_message(item, role="assistant")
        if isinstance(item, str)
        else Message.model_validate(item)
        for item in items
    ]
