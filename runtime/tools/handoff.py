"""Handoff tools: a call that moves the run to another node before any tool of its message runs."""

from __future__ import annotations

from ..errors import GraphDefinitionError
from .tool import Tool, tool

PREFIX = "transfer_to_"


def create_handoff_tool(agent_name: str, description: str | None = None) -> Tool:
    """A tool named ``transfer_to_<agent_name>``; the name alone makes it a handoff, as in 10xGraph."""
    if not agent_name:
        raise GraphDefinitionError("a handoff tool needs the name of the node that it hands over to")

    def handoff() -> str:
        return f"Handoff to {agent_name}"

    return tool(name=PREFIX + agent_name, description=description or f"Transfer control to {agent_name}")(handoff)


def handoff_target(tool_name: str) -> str | None:
    """The node that a call to ``tool_name`` hands over to, if its name says that it is a handoff."""
    return tool_name.removeprefix(PREFIX) or None if tool_name.startswith(PREFIX) else None
