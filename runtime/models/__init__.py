"""Models as nodes: the contract, a scripted model for tests and demos, and OpenAI's chat completions."""

from .model_node import Model, ModelNode, ToolSource
from .openai_chat import OpenAIChat
from .scripted import ScriptedModel, ScriptExhausted, ToolCalls, call

__all__ = ["Model", "ModelNode", "OpenAIChat", "ScriptExhausted", "ScriptedModel", "ToolCalls", "ToolSource", "call"]
