"""Update the state and say where to go, in one return value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """What a node or a tool may return.

    Args:
        update: What a node may return otherwise: a dict of fields, a state, a message or a list of them, or
            text. From a tool: a dict of state fields.
        goto: The next node, instead of what the edges say; ``END`` finishes the run.
        message: From a tool: what the model is told; ``"ok"`` by default.
    """

    update: Any = None
    goto: str | None = None
    message: Any = None
