"""What crosses Temporal: ids, versions, names and small outcomes. Never state, messages or tool arguments.

These models are written into workflow histories and are permanent contracts: a new field needs a default,
and no field changes its type, meaning or default. Defaults are not written, and tasks leave out what Temporal tells an
activity anyway: histories stay small. The run's input is the one place where user data crosses.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

WORKFLOW_TYPE = "GraphRun"
BEGIN_ACTIVITY = "run.begin"
COMMIT_TOOLS_ACTIVITY = "run.commit_tools"
CLOSE_ACTIVITY = "run.close"
PAUSE_ACTIVITY = "run.pause"
ANSWER_ACTIVITY = "run.answer"
CHECK_ANSWER_ACTIVITY = "run.check_answer"

COUNT_IGNORED = "tenxgraph_count_ignored"
"""Name of the function, given by the worker, that a workflow calls when it ignores an answer. Not on the wire."""

WORKER_SHUTDOWN = "WorkerShutdown"
"""Failure type of an attempt that its worker's shutdown cut short."""

STORE_UNAVAILABLE = "STORAGE_TRANSIENT_001"
"""Failure type of an attempt that could not reach the database."""
WORKER_EXHAUSTED = "WORKER_001"
"""Failure type of an attempt whose worker could not start a thread for it."""
UNREADABLE = "EncryptionError"
"""Type of what lies below the failure of an attempt whose worker could not decrypt the task."""
TOOL_ERROR = "ToolError"
"""Failure type of a tool that raised and is to be retried."""

_WORKFLOW_ID_PREFIX = "thread-"


def workflow_id_of(thread_id: str) -> str:
    """The only workflow id under which a run of ``thread_id`` may execute: it is what excludes a second."""
    return _WORKFLOW_ID_PREFIX + thread_id


def thread_id_of(workflow_id: str) -> str:
    """The inverse of ``workflow_id_of``."""
    return workflow_id.removeprefix(_WORKFLOW_ID_PREFIX)


def node_activity(node: str) -> str:
    """The activity type that runs ``node``."""
    return f"node:{node}"


def tool_activity(tool: str) -> str:
    """The activity type that runs calls to ``tool``."""
    return f"tool:{tool}"


def batch_activity(node: str) -> str:
    """The activity type that runs all calls of a message in tool node ``node``."""
    return f"tools:{node}"


MAX_NAME_BYTES = 900
"""Of a node, a tool or a task queue: Temporal refuses 1000 for ever, task by task, and activity types have a prefix."""


def name_in(activity_type: str) -> str:
    """The node or tool that an activity type names."""
    return activity_type.partition(":")[2]


class Wire(BaseModel):
    """Base of the wire models: immutable, tolerant of newer fields, and silent about defaults."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        defaults = _defaults(type(self))
        return {
            name: value
            for name, value in handler(self).items()
            if name not in defaults or getattr(self, name) != defaults[name]
        }


@cache
def _defaults(cls: type[BaseModel]) -> dict[str, Any]:
    return {name: field.default for name, field in cls.model_fields.items() if not field.is_required()}


DEADLINE_GRACE = 15.0
"""Seconds by which an activity's own timeout exceeds the deadline inside it, which fires first and cancels the code."""
UNBOUNDED = timedelta(days=3650)
"""Temporal's timeout of an activity that has none."""


class Limits(Wire):
    """What bounds one activity. Seconds; ``None`` means unbounded."""

    timeout: float | None = 900.0
    """One attempt, start to close."""
    step_timeout: float | None = None
    """The whole step that a tool call belongs to; its calls start together."""
    max_attempts: int = 5
    """Attempts before a step that keeps losing its worker is given up."""
    retry_interval: float = 1.0
    """Wait before the second attempt; doubles from there."""
    task_queue: str | None = None
    """Another queue than the workflow's."""

    @property
    def step_is_shorter(self) -> bool:
        """Whether the step's time runs out before the call's own."""
        return self.step_timeout is not None and (self.timeout is None or self.step_timeout < self.timeout)

    @property
    def attempt_timeout(self) -> float | None:
        """What one attempt has."""
        return self.step_timeout if self.step_is_shorter else self.timeout


class ToolCallRef(Wire):
    """One tool call of the message at hand."""

    tool_call_id: str
    tool: str
    limits: Limits | None = None
    """``None``: the position's ``call_limits``."""
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
    call_limits: Limits = Limits(timeout=300.0, step_timeout=900.0)
    batch: bool = False
    """The calls run in one activity."""
    local: bool = False
    """That activity is tried as a local one first."""
    then: str = ""
    """The node that follows a tool step as things stand: it commits the step before it runs."""
    then_limits: Limits = Limits()
    interrupts: tuple[InterruptRef, ...] = ()
    """Open interrupts: of the node, which is not run before they are answered, or of calls."""
    resumed: bool = False
    """Answers for this step are in the state."""
    code: str = ""
    error: str = ""
    unsaved: int = 0
    """Commits since ``version`` that are in the caches only; see ``durable_checkpoint_every_step``."""

    @property
    def at(self) -> tuple[int, int]:
        """Which state it is of."""
        return self.version, self.unsaved


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
    asked: bool = False
    """Whether the run had asked anything by then."""
    shows_status: Literal["nowhere", "memo", "search_attributes"] = "nowhere"
    """Where the run keeps ``TenxStatus``, ``running`` or ``paused``. Search attributes must be registered."""


class RunRef(Wire):
    """The run that a task belongs to; ``run_id`` is the first execution's and survives a reset.

    On the wire, a thread that the workflow's id names and a run that was never reset nor continued are left out.
    """

    graph: str
    thread_id: str = ""
    user_id: str = "anonymous"
    run_id: str = ""

    def compact(self, *, workflow_run_id: str) -> RunRef:
        """As it crosses Temporal."""
        return RunRef(
            graph=self.graph, user_id=self.user_id, run_id="" if self.run_id == workflow_run_id else self.run_id
        )

    def resolved(self, *, workflow_id: str, workflow_run_id: str) -> RunRef:
        """The inverse of ``compact``, with what an activity knows of its workflow."""
        return RunRef(
            graph=self.graph,
            thread_id=self.thread_id or thread_id_of(workflow_id),
            user_id=self.user_id,
            run_id=self.run_id or workflow_run_id,
        )


class RunTask(Wire):
    """Base of the tasks: what an activity is asked to do for a run."""

    run: RunRef


class BeginTask(RunTask):
    """Loads or creates the thread and appends the input. ``reset``: the run began once before."""

    input: dict[str, Any] = {}
    config: dict[str, Any] = {}
    reset: bool = False


class ToolTask(RunTask):
    """Runs one call to the tool that the activity's type names. Its arguments are in the message, its result goes to
    the ledger.
    """

    step: int
    node: str
    message_id: str
    tool_call_id: str
    resumed: bool = False
    """An interrupt of this call was answered: its answers are in the state."""
    step_is_shorter: bool = False
    """The activity's timeout is the step's: exceeding it ends the run, not the call."""


class ToolOutcome(Wire):
    """How a call ended. The result itself is in the ledger.

    ``error`` is a bounded text, present where the call failed. ``unrecorded`` carries the envelope of a
    finished call that the ledger could not take, so that the model still gets it: the one case in which a
    result crosses Temporal.
    """

    tool_call_id: str = ""
    status: Literal["ran", "replayed", "failed", "interrupted"]
    error: str | None = None
    unrecorded: dict[str, Any] | None = None
    interrupt: InterruptRef | None = None


class BatchTask(RunTask):
    """Runs calls of one message in one activity, whose type names the tool node."""

    step: int
    message_id: str
    calls: tuple[ToolCallRef, ...]
    call_limits: Limits = Limits(timeout=300.0, step_timeout=900.0)
    resumed: bool = False


class BatchOutcome(Wire):
    """How the calls of a batch ended, in their order. ``declined``: none was run, for it is no local activity's."""

    outcomes: tuple[ToolOutcome, ...] = ()
    declined: bool = False


class CommitToolsTask(RunTask):
    """Merges the calls' results in call order, appends the tool messages, resolves the next node."""

    version: int
    step: int
    node: str
    message_id: str
    outcomes: tuple[ToolOutcome, ...] = ()
    unsaved: int = 0


class PauseTask(RunTask):
    """Shows the open interrupts of a tool step in the thread's state."""

    version: int
    interrupts: tuple[InterruptRef, ...]
    unsaved: int = 0
    step: int = -1


class AnswerTask(RunTask):
    """Commits an answer, before the code that asked runs again. ``expired``: nobody gave one in time."""

    version: int
    interrupt: InterruptRef
    answer: Answer = Answer()
    expired: bool = False
    remaining: tuple[InterruptRef, ...] = ()
    unsaved: int = 0
    step: int = -1


class CheckTask(RunTask):
    """Compares an answer with what the interrupt asks for.

    An interrupt without a ``key`` is none that the workflow knows of: the thread may show it already.
    """

    interrupt: InterruptRef
    answer: Answer


class Checked(Wire):
    """``problem`` is empty for an answer that fits. ``interrupt_id`` is whose."""

    problem: str = ""
    interrupt_id: str = ""


class NodeTask(RunTask):
    """Runs the node that the activity's type names on state ``version``, and commits what it returned.

    ``tools`` is the tool step before it, to be committed first; if it leads elsewhere, the node does not run.
    """

    version: int
    step: int
    tools: CommitToolsTask | None = None
    unsaved: int = 0


class CloseTask(RunTask):
    """Ends a run that will not reach its end: ``stopped`` by a cancel, or with an ``error``."""

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
