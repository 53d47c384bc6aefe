"""What a person decides about a call: to approve it before it runs, or to settle it when it is in doubt."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..interrupt import Scope
from ..storage.contract import InDoubt

APPROVAL = "approval"
DOUBT = "in_doubt"


class Decision(BaseModel):
    """The answer to a request for approval; ``arguments`` replaces the model's, if given."""

    model_config = ConfigDict(extra="ignore")

    approved: bool = False
    arguments: dict[str, Any] | None = None
    reason: str = ""
    by: str = ""

    def audit(self) -> dict[str, Any]:
        """What the ledger keeps of it."""
        return {
            "approved": self.approved,
            "by": self.by,
            "reason": self.reason,
            "edited": self.approved and self.arguments is not None,
        }

    def refusal(self, tool: str) -> str:
        """What the model is told about a call that was not approved."""
        return f"Tool {tool!r} was not run: a person rejected the call" + (f": {self.reason}" if self.reason else ".")


class Ruling(BaseModel):
    """The answer about a call in doubt; ``result`` is what the tool would have returned."""

    model_config = ConfigDict(extra="ignore")

    outcome: Literal["happened", "not_happened", "failed"] = "failed"
    result: Any = None
    by: str = ""

    def audit(self) -> dict[str, Any]:
        """What the ledger keeps of it."""
        return {"outcome": self.outcome, "by": self.by}


def ask_approval(scope: Scope, tool: str, arguments: dict[str, Any], tool_call_id: str) -> Decision:
    """The decision about a call. An answer of another form, and a cancelled question, reject it.

    Raises:
        GraphInterrupt: Nobody has decided yet.
    """
    answer = scope.ask(
        APPROVAL,
        {"tool": tool, "arguments": arguments, "tool_call_id": tool_call_id},
        message=f"Run {tool}?",
        reason="tool_approval",
        response_schema={
            "type": "object",
            "properties": {
                "approved": {"type": "boolean"},
                "arguments": {"type": "object"},
                "reason": {"type": "string"},
            },
            "required": ["approved"],
        },
    )
    try:
        return Decision.model_validate(answer or {})
    except ValidationError:
        return Decision(reason="the answer was not understood")


def ask_about_doubt(scope: Scope, tool: str, arguments: dict[str, Any], doubt: InDoubt) -> Ruling:
    """What became of a call whose attempt was lost. A cancelled question treats it as failed.

    Raises:
        GraphInterrupt: Nobody has said yet.
    """
    started = doubt.started_at.isoformat()
    answer = scope.ask(
        f"{DOUBT}:{started}",
        {"tool": tool, "arguments": arguments, "started_at": started, "worker": doubt.worker},
        message=f"{tool} was started at {started} and its worker was lost. Did it happen?",
        reason=DOUBT,
        response_schema={
            "type": "object",
            "properties": {"outcome": {"enum": ["happened", "not_happened", "failed"]}, "result": {}},
            "required": ["outcome"],
        },
    )
    try:
        return Ruling.model_validate(answer or {})
    except ValidationError:
        return Ruling()
