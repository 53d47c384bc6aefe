"""The state of a thread, in 10xGraph's shape. Users subclass ``AgentState`` and add fields."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from .message import Message
from .reducers import Reducer, add_messages, reduced

START = "__start__"
END = "__end__"


class ExecutionStatus(StrEnum):
    """Where a thread's latest run stands."""

    RUNNING = "running"
    INTERRUPTED_BEFORE = "interrupted_before"
    INTERRUPTED_AFTER = "interrupted_after"
    COMPLETED = "completed"
    ERROR = "error"


class StopRequestStatus(StrEnum):
    """10xGraph's stop flag; here a stop is a Temporal cancellation, and the flag stays ``none``."""

    NONE = "none"
    STOP_REQUESTED = "stop_requested"
    STOPPED = "stopped"


class ExecutionState(BaseModel):
    """Progress of the run, kept inside the state. Written by the runtime, read by anyone."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    current_node: str = START
    step: int = 0
    status: ExecutionStatus = ExecutionStatus.RUNNING
    interrupted_node: str | None = None
    interrupt_reason: str | None = None
    interrupt_data: dict[str, Any] | None = None
    thread_id: str | None = None
    stop_current_execution: StopRequestStatus = StopRequestStatus.NONE
    internal_data: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_interrupted(self) -> bool:
        """Whether the run waits for a person, a client, or a next run after a stop."""
        return self.status in (ExecutionStatus.INTERRUPTED_BEFORE, ExecutionStatus.INTERRUPTED_AFTER)

    def set_interrupt(
        self, node: str, reason: str, status: ExecutionStatus, data: dict[str, Any] | None = None
    ) -> None:
        """Mark the run as paused at ``node``."""
        self.status = status
        self.interrupted_node, self.interrupt_reason, self.interrupt_data = node, reason, data

    def clear_interrupt(self) -> None:
        """Mark the run as going on."""
        self.status = ExecutionStatus.RUNNING
        self.interrupted_node = self.interrupt_reason = self.interrupt_data = None

    def complete(self) -> None:
        """Mark the run as finished."""
        self.clear_interrupt()
        self.current_node, self.status = END, ExecutionStatus.COMPLETED

    def fail(self, error: str) -> None:
        """Mark the run as failed; ``current_node`` stays where it failed."""
        self.clear_interrupt()
        self.status = ExecutionStatus.ERROR
        self.internal_data["error"] = error


class AgentState(BaseModel):
    """What a thread remembers: the conversation, its summary, and the fields of a subclass.

    Fields are stored as JSON; a reducer is attached by ``Annotated[..., reducer]``.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64", val_json_bytes="base64")

    context: Annotated[list[Message], add_messages] = Field(default_factory=list)
    context_summary: str | None = None
    execution_meta: ExecutionState = Field(default_factory=ExecutionState)

    @classmethod
    def reducers(cls) -> dict[str, Reducer]:
        """The reducer of each field that has one."""
        found: dict[str, Reducer] = {}
        for name, field in cls.model_fields.items():
            for item in field.metadata:
                if callable(item):
                    found[name] = item
                    break
        return found

    def apply(self, updates: dict[str, Any]) -> None:
        """Join ``updates`` into this state, each field through its reducer.

        Raises:
            KeyError: A name that is no field of this state.
            pydantic.ValidationError: A value that is not of the field's type.
            ValueError: The field's reducer raised.
        """
        reducers = self.reducers()
        self.set_fields(
            {
                name: reduced(name, reducers[name], getattr(self, name, None), value) if name in reducers else value
                for name, value in updates.items()
            }
        )

    def set_fields(self, values: dict[str, Any]) -> None:
        """Replace fields, past their reducers.

        Raises:
            KeyError, pydantic.ValidationError: As ``apply``.
        """
        unknown = values.keys() - type(self).model_fields.keys()
        if unknown:
            raise KeyError(
                f"{type(self).__name__} has no field {', '.join(sorted(unknown))}; "
                f"its fields are {', '.join(type(self).model_fields)}"
            )
        for name, value in values.items():
            self._assign(name, value)

    def _assign(self, name: str, value: Any) -> None:
        # Validate one field alone: assignment must not re-validate (and copy) a large state.
        self.__pydantic_validator__.validate_assignment(self, name, value)
