"""What running code may ask of its attempt: identity, progress, cancellation, the ledger's transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(kw_only=True)
class RunContext:
    """The attempt at hand. A node or a tool gets it by annotating a parameter with this type."""

    __tenx_injected__: ClassVar[str] = "context"

    thread_id: str
    user_id: str
    run_id: str
    node: str
    attempt: int = 1
    """Counts from 1; greater than 1 after a lost worker or a retry."""
    last_heartbeat: Sequence[Any] = ()
    """The details that the attempt before this one reported last."""
    _cancelled: threading.Event = field(default_factory=threading.Event, repr=False)
    _told: bool = field(default=False, repr=False)
    """The code has seen that it was cancelled: what it returns then is not its result."""
    _beat: Callable[..., None] = field(default=lambda *_: None, repr=False)

    @property
    def cancelled(self) -> bool:
        """True once the run is being stopped or the deadline has passed. For code in threads to poll."""
        if self._cancelled.is_set():
            self._told = True
        return self._told

    def heartbeat(self, *details: Any) -> None:
        """Report progress: shown in Temporal's UI, and given to the next attempt as ``last_heartbeat``.

        Liveness is reported by the product in any case. May be called from any thread.

        Raises:
            ValueError: The details are no JSON, or more than 1 MiB.
        """
        self._beat(*details)


@dataclass(kw_only=True)
class ToolContext(RunContext):
    """A tool call's attempt."""

    tool: str
    message_id: str
    tool_call_id: str
    idempotency_key: str
    """The same for every attempt at this call and for no other call; made for payment providers."""
    _transaction: Callable[[], AbstractAsyncContextManager[Any]] | None = field(default=None, repr=False)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """The connection on which this call's result will be recorded.

        What the tool writes inside commits with the record or not at all: exactly once. The block must
        compute what the tool returns; the record is written when the tool has returned.
        """
        if self._transaction is None:
            raise RuntimeError("transaction() is for tool calls that run under the ledger")
        return self._transaction()
