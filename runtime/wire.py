"""What crosses Temporal: ids, versions, names and small outcomes. Never state, messages or tool arguments.

These models are written into workflow histories and are permanent contracts: a new field needs a default,
and no field changes its type or meaning. The run's input is the one place where user data crosses.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

WORKFLOW_TYPE = "GraphRun"
BEGIN_ACTIVITY = "run.begin"
COMMIT_TOOLS_ACTIVITY = "run.commit_tools"
CLOSE_ACTIVITY = "run.close"
PAUSE_ACTIVITY = "run.pause"
ANSWER_ACTIVITY = "run.answer"
CHECK_ANSWER_ACTIVITY = "run.check_answer"

WORKER_SHUTDOWN = "WorkerShutdown"
"""Failure type of an attempt that its worker's shutdown cut short."""

STORE_UNAVAILABLE = "STORAGE_TRANSIENT_001"
"""Failure type of an attempt that could not reach the database."""
TOOL_ERROR = "ToolError"
"""Failure type of a tool that raised and is to be retried."""

_WORKFLOW_ID_PREFIX = "thread-"


def workflow_id_of(thread_id: str) -> str:
    """The only workflow id under which a run of ``thread_id`` may execute: it is what excludes a second."""
    return _WORKFLOW_ID_PREFIX + thread_id


def node_activity(node: str) -> str:
    """The activity type that runs ``node``."""
    return f"node:{node}"


def tool_activity(tool: str) -> str:
    """The activity type that runs calls to ``tool``."""
    return f"tool:{tool}"


class Wire(BaseModel):
    """Base of the wire models: immutable, tolerant of newer fields, and silent about defaults."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {
            name: value
            for name, value in handler(self).items()
            if fields[name].is_required() or getattr(self, name) != fields[name].default
        }


class Limits(Wire):
    """What bounds one activity. Seconds; ``None`` means unbounded."""

    timeout: float | None = None
    """One attempt, start to close."""
    step_timeout: float | None = None
    """The whole step that a tool call belongs to, from its scheduling."""
    max_attempts: int = 5
    """Attempts before a step that keeps losing its worker is given up."""
    retry_interval: float = 1.0
    """Wait before the second attempt; doubles from there."""
    task_queue: str | None = None
    """Another queue than the workflow's."""


class ToolCallRef(Wire):
    """One tool call of the message at hand."""

    tool_call_id: str
    tool: str
    limits: Limits = Limits()
    known: bool = True
    """False for a tool that the graph does not have: nothing to run, the commit answers the model."""


class InterruptRef(Wire):
    """An open interrupt. What is asked stays in Postgres."""

    interrupt_id: str
    key: str
    tool_call_id: str = ""
    """Empty for an interrupt of a node."""
    timeout: float | None = None
    on_timeout: Literal["answer", "error", "fail"] = "error"
    expires_at: float | None = None
    """Seconds since the epoch, by the workflow's clock."""


class Answer(Wire):
    """An answer to an interrupt, as a signal or update brings it. Without an id: to the only open one."""

    interrupt_id: str | None = None
    value: Any = None
    by: str = ""


class Position(Wire):
    """Where a run stands after a commit, and all that the workflow needs to go on from it.

    ``next`` says what to do: begin; run ``node``; run ``calls`` of ``message_id`` (the step of a tool node);
    end, the run being finished; or fail, the state having been saved with ``code`` and ``error``.
    """

    version: int
    step: int
    node: str
    next: Literal["begin", "node", "tools", "end", "fail"]
    limits: Limits = Limits()
    message_id: str = ""
    calls: tuple[ToolCallRef, ...] = ()
    interrupts: tuple[InterruptRef, ...] = ()
    """Open interrupts: of the node, which is not run before they are answered, or of calls."""
    resumed: bool = False
    """Answers for this step are in the state."""
    code: str = ""
    error: str = ""


class RunInput(Wire):
    """Starts a run. ``input`` is ``{"messages": [...], "state": {...}}``, either may be absent.

    ``config`` takes ``recursion_limit``, ``node_timeout``, ``tool_timeout``, ``thread_name``,
    ``thread_meta``, ``meta``, and any keys of the user's own. ``position`` is set by the product when a
    run continues as new.
    """

    graph: str
    thread_id: str
    user_id: str = "anonymous"
    input: dict[str, Any] = {}
    config: dict[str, Any] = {}
    position: Position | None = None
    answers: tuple[Answer, ...] = ()
    """Answers that were not used yet when the run continued as new."""


class RunRef(Wire):
    """The run that a task belongs to; ``run_id`` is the first execution's and survives a reset."""

    graph: str
    thread_id: str
    user_id: str
    run_id: str


class BeginTask(Wire):
    """Loads or creates the thread and appends the input. ``reset``: the run began once before."""

    run: RunRef
    input: dict[str, Any] = {}
    config: dict[str, Any] = {}
    reset: bool = False


class NodeTask(Wire):
    """Runs ``node`` on state ``version`` and commits what it returned."""

    run: RunRef
    version: int
    step: int
    node: str
    timeout: float | None = None


class ToolTask(Wire):
    """Runs one tool call. Its arguments are in the message, its result goes to the ledger."""

    run: RunRef
    version: int
    step: int
    node: str
    message_id: str
    tool_call_id: str
    tool: str
    timeout: float | None = None
    step_timeout: float | None = None
    resumed: bool = False
    """An interrupt of this call was answered: its answers are in the state."""


class ToolOutcome(Wire):
    """How a call ended. The result itself is in the ledger.

    ``error`` is a bounded text, present where the call failed. ``unrecorded`` carries the envelope of a
    finished call that the ledger could not take, so that the model still gets it: the one case in which a
    result crosses Temporal.
    """

    tool_call_id: str
    status: Literal["ran", "replayed", "failed", "interrupted"]
    error: str | None = None
    unrecorded: dict[str, Any] | None = None
    interrupt: InterruptRef | None = None


class CommitToolsTask(Wire):
    """Merges the calls' results in call order, appends the tool messages, resolves the next node."""

    run: RunRef
    version: int
    step: int
    node: str
    message_id: str
    outcomes: tuple[ToolOutcome, ...] = ()


class PauseTask(Wire):
    """Shows the open interrupts of a tool step in the thread's state."""

    run: RunRef
    version: int
    interrupts: tuple[InterruptRef, ...]


class AnswerTask(Wire):
    """Commits an answer, before the code that asked runs again. ``expired``: nobody gave one in time."""

    run: RunRef
    version: int
    interrupt: InterruptRef
    answer: Answer = Answer()
    expired: bool = False
    remaining: tuple[InterruptRef, ...] = ()


class CheckTask(Wire):
    """Compares an answer with what the interrupt asks for."""

    run: RunRef
    interrupt: InterruptRef
    answer: Answer


class Checked(Wire):
    """``problem`` is empty for an answer that fits."""

    problem: str = ""


class CloseTask(Wire):
    """Ends a run that will not reach its end: ``stopped`` by a cancel, or with an ``error``."""

    run: RunRef
    status: Literal["stopped", "error"]
    error: str = ""
    code: str = ""
    position: Position | None = None


class RunResult(Wire):
    """What the workflow returns. The conversation itself is in the thread's state."""

    thread_id: str
    version: int
    step: int
    status: Literal["completed", "stopped"] = "completed"
