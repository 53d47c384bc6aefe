"""Deterministic workflow code: the run loop. Imports no user code and does no I/O."""

from .graph_run import GraphRun

__all__ = ["GraphRun"]
