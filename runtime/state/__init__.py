"""Messages and state: what a thread remembers."""

from .agent_state import END, START, AgentState, ExecutionState, ExecutionStatus
from .message import Message, TokenUsages
from .reducers import add_messages, append_items, replace_messages, replace_value

__all__ = [
    "END",
    "START",
    "AgentState",
    "ExecutionState",
    "ExecutionStatus",
    "Message",
    "TokenUsages",
    "add_messages",
    "append_items",
    "replace_messages",
    "replace_value",
]
