"""A node that runs the tool calls of the latest assistant message, each as an activity of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, get_args

from ..errors import GraphDefinitionError
from ..limits import Unset
from ..wire import MAX_NAME_BYTES
from .tool import Tool, tool

Execution = Literal["activity", "batch", "local"]


class ToolNode:
    """Tools by name: plain functions, sync or async, or ``Tool`` objects.

    Args:
        tools: The tools.
        execution: ``"activity"`` runs each call as an activity of its own, on any worker; ``"batch"`` runs the calls
            of a message in one activity, concurrently, which costs Temporal less; ``"local"`` makes that a local
            activity of the worker that asked for them, which costs least and is for tools that take well under a
            second. The ledger holds for all alike.
        requires_approval: As the option of a single tool, for all that do not say otherwise themselves.

    Raises:
        GraphDefinitionError: Two tools with one name, or something that cannot be called.
    """

    def __init__(
        self,
        tools: Iterable[Callable[..., Any] | Tool],
        *,
        execution: Execution = "activity",
        requires_approval: bool | Callable[[dict[str, Any]], bool] = False,
    ) -> None:
        self._tools: dict[str, Tool] = {}
        if execution not in get_args(Execution):
            known = ", ".join(map(repr, get_args(Execution)))
            raise GraphDefinitionError(f"ToolNode: execution={execution!r} is not known; use one of {known}")
        self.execution: Execution = execution
        self._requires_approval = requires_approval
        for item in tools:
            self.add_tool(item)

    def add_tool(self, item: Callable[..., Any] | Tool) -> None:
        """Add one more tool."""
        if not callable(item):
            raise GraphDefinitionError(f"ToolNode: {item!r} is not a function; pass functions or Tool objects")
        added = item if isinstance(item, Tool) else tool(item)
        if added.name in self._tools:
            raise GraphDefinitionError(
                f"ToolNode: two tools are named {added.name!r}; give one another name with @tool(name=...)"
            )
        if len((added.task_queue or "").encode()) > MAX_NAME_BYTES:
            raise GraphDefinitionError(
                f"ToolNode: the task_queue of {added.name!r} has more than {MAX_NAME_BYTES} bytes; shorten it"
            )
        if isinstance(added.requires_approval, Unset):
            added = replace(added, requires_approval=self._requires_approval)
        if self.execution != "activity" and added.task_queue is not None:
            raise GraphDefinitionError(
                f"ToolNode: {added.name!r} has a task_queue of its own, but execution={self.execution!r} runs all "
                "calls in one activity; use execution='activity', or give the node a task_queue and execution='batch'"
            )
        self._tools[added.name] = added

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools by name."""
        return dict(self._tools)

    def schemas(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's function-calling form, to pass to a model."""
        return [item.schema.openai() for item in self._tools.values()]

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]
