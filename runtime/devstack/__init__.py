"""Real servers for development and tests, started from PyPI wheels: no Docker, no root needed.

``async with dev_stack() as stack:`` runs a Temporal dev server with its UI, Postgres and Valkey on
free ports of 127.0.0.1. They listen without passwords and end with this process, however it ends.
"""

from .errors import DevStackError
from .server import Server
from .stack import DevStack, dev_stack
from .time_skipping import skip_time

__all__ = ["DevStack", "DevStackError", "Server", "dev_stack", "skip_time"]
