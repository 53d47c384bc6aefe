"""A tool: a plain function, and the options its author gives it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, overload

from ..errors import GraphDefinitionError
from ..limits import UNSET, Retry, Timeout, Unset
from .schema import ToolSchema, tool_schema

logger = logging.getLogger(__name__)

InDoubt = Literal["rerun", "fail", "ask"]
Approval = bool | Callable[[dict[str, Any]], bool] | Unset


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that a model can call.

    ``in_doubt`` decides about a call that was started and lost before its result was recorded: ``"rerun"``
    runs it again (at least once), ``"fail"`` tells the model that the outcome is unknown, ``"ask"`` pauses
    for a person. ``task_queue`` sends calls to workers of their own. ``interruptible`` lets a
    stop or a deadline raise ``ThreadInterrupted`` inside a sync function, at a bytecode of the runtime's
    choice; without it a sync function is asked to poll ``context.cancelled``. ``requires_approval`` (or a predicate
    over the arguments) pauses for a person before the call. A ``remote`` tool is carried out by the client: the call
    pauses the run, and the client's result resumes it.
    """

    function: Callable[..., Any]
    schema: ToolSchema
    timeout: Timeout | Unset = UNSET
    retry: Retry | None = None
    in_doubt: InDoubt = "rerun"
    task_queue: str | None = None
    interruptible: bool = False
    requires_approval: Approval = UNSET
    remote: bool = False

    def needs_approval(self, arguments: dict[str, Any]) -> bool:
        """Whether a person has to agree to a call with these arguments; a predicate that raises says yes."""
        if callable(self.requires_approval):
            try:
                return bool(self.requires_approval(arguments))
            except Exception:
                logger.exception("requires_approval of tool %s raised; a person is asked", self.name)
                return True
        return self.requires_approval is True

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return self.schema.name

    @property
    def injects(self) -> frozenset[str]:
        """What the function asks for besides the model's arguments: state, config, tool_call_id, context."""
        return frozenset(self.schema.injected.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as in a unit test."""
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: Timeout | Unset = UNSET,
    retry: Retry | None = None,
    in_doubt: InDoubt = "rerun",
    task_queue: str | None = None,
    interruptible: bool = False,
    requires_approval: Approval = UNSET,
    remote: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: Timeout | Unset = UNSET,
    retry: Retry | None = None,
    in_doubt: InDoubt = "rerun",
    task_queue: str | None = None,
    interruptible: bool = False,
    requires_approval: Approval = UNSET,
    remote: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a ``Tool``; with options, as ``@tool(timeout=60)``.

    Raises:
        GraphDefinitionError: An option or the function's signature is wrong; names the tool.
    """

    def make(target: Callable[..., Any]) -> Tool:
        schema = tool_schema(target, name=name, description=description)
        if in_doubt not in ("rerun", "fail", "ask"):
            raise GraphDefinitionError(
                f"tool {schema.name!r}: in_doubt={in_doubt!r} is not known; use 'rerun', 'fail' or 'ask'"
            )
        return Tool(
            function=target,
            schema=schema,
            timeout=timeout,
            retry=retry,
            in_doubt=in_doubt,
            task_queue=task_queue,
            interruptible=interruptible,
            requires_approval=requires_approval,
            remote=remote,
        )

    return make if function is None else make(function)
