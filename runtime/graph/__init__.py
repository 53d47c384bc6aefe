"""Graph authoring: nodes, edges, and how a run moves along them."""

from ..command import Command
from .compiled_graph import CompiledGraph
from .state_graph import StateGraph

__all__ = ["Command", "CompiledGraph", "StateGraph"]
