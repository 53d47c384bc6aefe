"""Deterministic workflow code: the run loop. Imports no user code and does no I/O."""
