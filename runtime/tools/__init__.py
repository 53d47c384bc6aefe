"""Tools: functions that a model can call, under the ledger."""

from .context import RunContext, ToolContext
from .handoff import create_handoff_tool
from .result import ToolResult
from .tool import Tool, tool
from .tool_node import ToolNode

__all__ = ["RunContext", "Tool", "ToolContext", "ToolNode", "ToolResult", "create_handoff_tool", "tool"]
