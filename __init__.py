"""Agent graphs that run durably on Temporal, with a tool ledger and versioned state in Postgres."""

from .plugin import TenxGraphPlugin
from .runtime.client import GraphClient, RunHandle
from .runtime.codec import EncryptionCodec
from .runtime.command import Command
from .runtime.connect import WirePlugin, connect
from .runtime.encryption_keys import EncryptionKeys
from .runtime.errors import TenxGraphError
from .runtime.graph import CompiledGraph, StateGraph
from .runtime.interrupt import InterruptExpired, OnTimeout, interrupt
from .runtime.limits import Retry
from .runtime.models import ModelNode, OpenAIChat, ScriptedModel, call
from .runtime.settings import Settings
from .runtime.state import (
    END,
    START,
    AgentState,
    ExecutionState,
    ExecutionStatus,
    Message,
    TokenUsages,
    add_messages,
    append_items,
    replace_messages,
    replace_value,
)
from .runtime.storage import Store, open_store
from .runtime.threads import OpenInterrupt, delete_thread, edit_thread, fork_thread, open_interrupts, thread_state
from .runtime.tools import RunContext, Tool, ToolContext, ToolNode, ToolResult, create_handoff_tool, tool
from .runtime.wire import RunInput, RunResult, workflow_id_of

__all__ = [
    "END",
    "START",
    "AgentState",
    "Command",
    "CompiledGraph",
    "EncryptionCodec",
    "EncryptionKeys",
    "ExecutionState",
    "ExecutionStatus",
    "GraphClient",
    "InterruptExpired",
    "Message",
    "ModelNode",
    "OnTimeout",
    "OpenAIChat",
    "OpenInterrupt",
    "Retry",
    "RunContext",
    "RunHandle",
    "RunInput",
    "RunResult",
    "ScriptedModel",
    "Settings",
    "StateGraph",
    "Store",
    "TenxGraphError",
    "TenxGraphPlugin",
    "TokenUsages",
    "Tool",
    "ToolContext",
    "ToolNode",
    "ToolResult",
    "WirePlugin",
    "add_messages",
    "append_items",
    "call",
    "connect",
    "create_handoff_tool",
    "delete_thread",
    "edit_thread",
    "fork_thread",
    "interrupt",
    "open_interrupts",
    "open_store",
    "replace_messages",
    "replace_value",
    "thread_state",
    "tool",
    "workflow_id_of",
]
