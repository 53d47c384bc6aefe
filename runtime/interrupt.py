"""Pausing for a person: ``interrupt()`` inside a node or a tool.

The first time, it ends the attempt; the run waits, durably. When the answer is there the code runs again from its
start, and ``interrupt()`` returns the answer. Code before it runs again, so effects belong after it. Several calls
in one node or tool are answered in order, one each.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Literal

from jsonschema import SchemaError
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from pydantic import BaseModel

from .state import AgentState, ExecutionStatus
from .state.encoding import to_jsonable
from .wire import UNBOUNDED, InterruptRef

INTERRUPT_REASON = "interrupt"
"""``execution_meta.interrupt_reason`` of such a pause."""
RESUME_KEY = "interrupt_resume"
"""Key of ``execution_meta.internal_data`` that holds the answers of the step, by the interrupt's key."""
_EXPIRED = {"__tenxgraph__": "expired"}


class OnTimeout(Enum):
    """What happens to an interrupt that nobody answered in time, other than a default answer."""

    ERROR = "error"
    """``interrupt()`` raises ``InterruptExpired``: a tool's call then fails, and the model is told."""
    FAIL = "fail"
    """The run fails."""


class InterruptExpired(TimeoutError):
    """Nobody answered in time."""


class InterruptRequest(BaseModel):
    """What a person is asked, in 10xGraph's shape; ``default`` is the answer on expiry, if there is one."""

    id: str
    key: str
    node: str
    value: Any = None
    message: str | None = None
    reason: str = "input_required"
    response_schema: dict[str, Any] | None = None
    tool_call_id: str | None = None
    default: Any = None
    timeout: float | None = None
    on_timeout: Literal["answer", "error", "fail"] = "error"

    @property
    def ref(self) -> InterruptRef:
        """What the workflow knows of it."""
        return InterruptRef(
            interrupt_id=self.id,
            key=self.key,
            tool_call_id=self.tool_call_id or "",
            timeout=self.timeout,
            on_timeout=self.on_timeout,
        )


class GraphInterrupt(BaseException):
    """Ends the attempt that paused. A ``BaseException``, so that ``except Exception`` lets it pass."""

    def __init__(self, request: InterruptRequest) -> None:
        super().__init__(request.message or request.reason)
        self.request = request


@dataclass
class Scope:
    """The running node or tool call: who asks, and which answers are there.

    ``identity`` makes ids: the same for every attempt, different for every step or call.
    """

    node: str
    identity: str
    answers: Mapping[str, Any]
    tool_call_id: str | None = None
    asked: int = field(default=0)

    def ask(
        self,
        name: str | int,
        value: Any = None,
        *,
        message: str | None = None,
        reason: str = "input_required",
        response_schema: dict[str, Any] | None = None,
        timeout: float | timedelta | None = None,
        on_timeout: Any = OnTimeout.ERROR,
    ) -> Any:
        """The answer to the question ``name`` of this scope.

        Raises:
            GraphInterrupt: There is none yet.
            InterruptExpired: Nobody answered in time.
            ValueError: The question is wrong: its schema, its timeout, or what happens then.
        """
        _check_question(response_schema, on_timeout)
        expires_after = _seconds(timeout)
        whose = f"tool:{self.tool_call_id}" if self.tool_call_id else f"node:{self.node}"
        key = f"{whose}:{name}"
        if key in self.answers:
            if self.answers[key] == _EXPIRED:
                raise InterruptExpired(f"nobody answered {message or reason!r} in time")
            return self.answers[key]
        interrupt_id = "int_" + hashlib.sha256(f"{self.identity}\0{key}".encode()).hexdigest()[:32]
        request = InterruptRequest(
            id=interrupt_id,
            key=key,
            node=self.node,
            value=to_jsonable(value),
            message=message,
            reason=reason,
            response_schema=response_schema,
            tool_call_id=self.tool_call_id,
            default=None if isinstance(on_timeout, OnTimeout) else to_jsonable(on_timeout),
            timeout=expires_after,
            on_timeout=on_timeout.value if isinstance(on_timeout, OnTimeout) else "answer",
        )
        raise GraphInterrupt(request)


def _check_question(response_schema: Any, on_timeout: Any) -> None:
    """A person is asked this, perhaps for days: what is wrong with it is said to who wrote it."""
    if response_schema is not None:
        try:
            validator_for(response_schema).check_schema(response_schema)
        except Exception as exc:  # whatever a schema makes the library do
            said = exc.message if isinstance(exc, SchemaError) else f"{type(exc).__name__}: {exc}"
            raise ValueError(f"the response_schema of interrupt() is no JSON Schema: {said}") from exc
    if isinstance(on_timeout, str) and on_timeout in {choice.value for choice in OnTimeout}:
        raise ValueError(f"on_timeout={on_timeout!r} would be taken as the answer; pass OnTimeout.{on_timeout.upper()}")


def _seconds(timeout: Any) -> float | None:
    """Unlike a deadline of code, one that has passed does not mean none: time is up at once."""
    if timeout is None:
        return None
    given = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if not isinstance(given, int | float) or isinstance(given, bool) or math.isnan(given):
        raise ValueError(f"the timeout of interrupt() is a number of seconds or a timedelta, not {timeout!r}")
    return None if given >= UNBOUNDED.total_seconds() else max(0.0, float(given))


_scope: ContextVar[Scope | None] = ContextVar("tenxgraph_interrupt_scope", default=None)


@contextmanager
def interrupt_scope(scope: Scope) -> Iterator[None]:
    """Let ``interrupt()`` work in what is called inside the block."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


def interrupt(
    value: Any = None,
    *,
    message: str | None = None,
    reason: str = "input_required",
    response_schema: dict[str, Any] | None = None,
    timeout: float | timedelta | None = None,
    on_timeout: Any = OnTimeout.ERROR,
) -> Any:
    """Pause until somebody answers, then return the answer (``None`` if they cancelled).

    Args:
        value: What to decide about, JSON-native.
        message: The question, for people.
        reason: Why, for programs.
        response_schema: JSON Schema that the answer has to fit.
        timeout: Seconds to wait; for ever by default. Time that is up already expires at once.
        on_timeout: ``OnTimeout.ERROR``, ``OnTimeout.FAIL``, or the answer to take when time is up.

    Raises:
        RuntimeError: Called outside a node or tool.
        ValueError: The schema, the timeout or ``on_timeout`` is wrong.
        InterruptExpired: Nobody answered in time.
    """
    scope = _scope.get()
    if scope is None:
        raise RuntimeError("interrupt() works only while a node or a tool is running")
    number, scope.asked = scope.asked, scope.asked + 1
    return scope.ask(
        number,
        value,
        message=message,
        reason=reason,
        response_schema=response_schema,
        timeout=timeout,
        on_timeout=on_timeout,
    )


def answers_of(state: AgentState) -> dict[str, Any]:
    """The answers of the step at hand, by the interrupts' keys."""
    return dict(state.execution_meta.internal_data.get(RESUME_KEY) or {})


def clear_answers(state: AgentState) -> None:
    """Forget the answers of a step that is finished."""
    state.execution_meta.internal_data.pop(RESUME_KEY, None)


def open_requests(state: AgentState) -> list[InterruptRequest]:
    """What the thread waits for. 10xGraph keeps one request; ours keep all of them beside it."""
    meta = state.execution_meta
    if not meta.is_interrupted or meta.interrupt_reason != INTERRUPT_REASON:
        return []
    data = meta.interrupt_data or {}
    requests = data.get("interrupts") or [data.get("interrupt")]
    return [InterruptRequest.model_validate(request) for request in requests if request]


def show_requests(state: AgentState, requests: Sequence[InterruptRequest]) -> None:
    """Mark the state as waiting for ``requests``; as going on, if there are none."""
    meta = state.execution_meta
    if not requests:
        meta.clear_interrupt()
        return
    shown = [request.model_dump(mode="json") for request in requests]
    data = {"interrupt": shown[0], "interrupts": shown}
    meta.set_interrupt(meta.current_node, INTERRUPT_REASON, ExecutionStatus.INTERRUPTED_BEFORE, data)


def take_answer(state: AgentState, request: InterruptRequest, value: Any) -> None:
    """Keep an answer for the code that asked."""
    state.execution_meta.internal_data[RESUME_KEY] = {**answers_of(state), request.key: value}


def expiry_value(request: InterruptRequest) -> Any:
    """What stands for the answer that nobody gave."""
    return request.default if request.on_timeout == "answer" else dict(_EXPIRED)


def answer_problem(request: InterruptRequest, value: Any) -> str:
    """Why ``value`` does not fit the request's ``response_schema``; empty if it does. ``None`` always fits."""
    if value is None or request.response_schema is None:
        return ""
    try:
        error = best_match(validator_for(request.response_schema)(request.response_schema).iter_errors(value))
    except Exception as exc:  # a schema may still refer to what there is not
        return f"the response_schema of {request.key} is itself wrong: {type(exc).__name__}: {exc}"
    if error is None:
        return ""
    where = "/".join(map(str, error.absolute_path))
    return f"{where}: {error.message}" if where else str(error.message)
