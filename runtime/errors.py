"""Every error of the product, in one tree, with 10xGraph's codes.

    TenxGraphError
      RetryableError            the attempt may be repeated: nothing was decided
        StoreUnavailable        STORAGE_TRANSIENT_001
        WorkerExhausted         WORKER_001       the worker has no thread left for sync code
      TerminalError             repeating it cannot help; a run that meets it fails
        GraphDefinitionError    GRAPH_001        a graph that cannot be built
        UnknownGraphError       GRAPH_002        this worker does not host that graph, node or tool
        InputError              GRAPH_003        the run's input cannot start or continue the thread
        RoutingError            GRAPH_ROUTING_001
        GraphRecursionError     RECURSION_001
        NodeError               NODE_001 (failed), NODE_002 (no tool calls), NODE_003 (no context)
        NodeTimeoutError        NODE_TIMEOUT_001 (node), NODE_TIMEOUT_002 (tool)
        EncodingError           STORAGE_002      a value that cannot be stored
        StoreError              STORAGE_001
        SchemaError             STORAGE_SCHEMA_001
        StaleStateError         STORAGE_CONFLICT_001
        ForbiddenError          STORAGE_FORBIDDEN_001
        SettingsError           SETTINGS_001
        EncryptionError         ENCRYPTION_001   a payload that this process cannot decrypt

Every message names the object and the remedy.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import ValidationError


class TenxGraphError(Exception):
    """Root of the tree. ``code`` is stable and made for programs, the message for people."""

    code: ClassVar[str] = "TENXGRAPH"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code  # type: ignore[misc]  # an instance may carry a finer code than its class

    @property
    def text(self) -> str:
        """The message without the code."""
        return super().__str__()

    def __str__(self) -> str:
        return f"[{self.code}] {self.text}"


class RetryableError(TenxGraphError):
    """Nothing was decided; the same attempt may be made again."""


class StoreUnavailable(RetryableError):
    """The database could not be reached, or gave up on the transaction."""

    code = "STORAGE_TRANSIENT_001"


class WorkerExhausted(RetryableError):
    """The worker could not start a thread; the code that was to run in it has not begun."""

    code = "WORKER_001"


class TerminalError(TenxGraphError):
    """Repeating the attempt cannot help."""


class GraphDefinitionError(TerminalError):
    """The graph cannot be built as written."""

    code = "GRAPH_001"


class UnknownGraphError(TerminalError):
    """A graph, node or tool that this worker does not host."""

    code = "GRAPH_002"


class InputError(TerminalError):
    """The run's input cannot start or continue the thread."""

    code = "GRAPH_003"


class RoutingError(TerminalError):
    """A router raised, or named a node that does not exist."""

    code = "GRAPH_ROUTING_001"


class GraphRecursionError(TerminalError):
    """The run took more steps than its ``recursion_limit`` allows."""

    code = "RECURSION_001"


class NodeError(TerminalError):
    """A node raised, or could not start."""

    code = "NODE_001"


class NodeTimeoutError(TerminalError):
    """A node (``NODE_TIMEOUT_001``) or a tool (``NODE_TIMEOUT_002``) exceeded its deadline."""

    code = "NODE_TIMEOUT_001"


class StoreError(TerminalError):
    """The database refused a statement for a reason that will not pass by itself."""

    code = "STORAGE_001"


class EncodingError(TerminalError):
    """A value that JSON or the database cannot hold."""

    code = "STORAGE_002"


class SchemaError(TerminalError):
    """The database's schema is missing, too old, or newer than this code."""

    code = "STORAGE_SCHEMA_001"


class ForbiddenError(TerminalError):
    """The thread belongs to another user."""

    code = "STORAGE_FORBIDDEN_001"

    def __init__(self, thread_id: str) -> None:
        super().__init__(
            f"thread {thread_id!r} is not available to this user; start a thread of your own, "
            "or run with the user_id that owns it"
        )


class StaleStateError(TerminalError):
    """Another execution moved the thread: the loser writes nothing and stops."""

    code = "STORAGE_CONFLICT_001"

    def __init__(self, thread_id: str, *, expected_version: int, current_version: int) -> None:
        super().__init__(
            f"thread {thread_id!r} was modified by another execution (expected version {expected_version}, "
            f"found {current_version}); this one wrote nothing: start a new run to go on from there"
        )
        self.thread_id = thread_id
        self.expected_version = expected_version
        self.current_version = current_version


class SettingsError(TerminalError):
    """A setting that is missing or wrong."""

    code = "SETTINGS_001"


class EncryptionError(TerminalError):
    """A payload from Temporal that this process cannot decrypt. Never holds content."""

    code = "ENCRYPTION_001"


def problems(error: Exception) -> str:
    """What is wrong, on one line: each place and its problem, where pydantic found them."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(": ") for e in error.errors())
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
