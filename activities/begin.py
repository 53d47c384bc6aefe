"""How a run begins: the input joins the thread's state, by 10xGraph's rules."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from temporalio import activity

from ..runtime.errors import InputError, StaleStateError, problems
from ..runtime.graph import CompiledGraph
from ..runtime.graph.advance import enter, is_answered
from ..runtime.interrupt import InterruptRequest, answer_problem, open_requests, show_requests, take_answer
from ..runtime.limits import RunConfig
from ..runtime.state import END, START, AgentState, ExecutionStatus, Message
from ..runtime.storage.contract import LedgerEntry
from ..runtime.storage.snapshot import Snapshot
from ..runtime.tools.identity import reidentified, settle_identity
from ..runtime.wire import BEGIN_ACTIVITY, BeginTask, Position, RunRef
from .host import Host, boundary
from .tool_steps import ToolSteps

logger = logging.getLogger(__name__)


class RunBegin:
    """The local activity ``run.begin``."""

    def __init__(self, host: Host, tool_steps: ToolSteps) -> None:
        self._host = host
        self._tool_steps = tool_steps

    @activity.defn(name=BEGIN_ACTIVITY)
    @boundary
    async def begin(self, task: BeginTask) -> Position:
        """Load or create the thread, append the input, and say where the run starts or goes on."""
        states = self._host.states
        graph = self._host.graph(task.run.graph)
        base = await states.head(task.run) or Snapshot()
        if base.origin is not None and base.origin.run_id == task.run.run_id:
            return Position.model_validate(base.origin.position)  # begun before: a retry, or a reset
        if task.reset:
            # Begun before, and since then another run went on from there.
            raise StaleStateError(task.run.thread_id, expected_version=0, current_version=base.version)
        state = base.decode(graph.state_class) if base.version else graph.state_class()
        known_ids = frozenset(message.message_id for message in state.context)
        config = RunConfig.of(task.config)
        if not config.durable and not states.can_wait:
            logger.warning(
                "thread %s: durable_checkpoint_every_step is off, but this worker has no TENXGRAPH_REDIS_URL to keep "
                "unsaved steps in: every step is saved",
                task.run.thread_id,
            )
        if base.origin is None:
            await _pass_finished_node(graph, state)
        requests, entries, gate = await self._enter(graph, state, task)
        position = enter(graph, state, config=config, version=base.version + 1, gate=gate)
        if requests:
            show_requests(state, requests)
            position = position.model_copy(update={"interrupts": tuple(request.ref for request in requests)})
        return await states.commit(
            task.run,
            base,
            state,
            position,
            step=0,
            node=START,
            kind="begin",
            config=task.config,
            results=entries,
            known_ids=known_ids,
        )

    async def _enter(
        self, graph: CompiledGraph, state: AgentState, task: BeginTask
    ) -> tuple[list[InterruptRequest], list[LedgerEntry], bool]:
        """Join the run's input into the thread's state, by 10xGraph's rules.

        Returns:
            What the thread still waits for, records of calls that were closed, and whether a pause before the first
            node applies.
        """
        unknown = task.input.keys() - {"messages", "state", "resume", "interrupt_id"}
        if unknown:
            raise InputError(
                f"input has {', '.join(map(repr, sorted(unknown)))}; it takes 'messages' and 'state', or 'resume'"
            )
        meta = state.execution_meta
        _check_gates(graph, task.config)
        requests = self._resumed(state, task)
        paused = meta.is_interrupted
        entries: list[LedgerEntry] = []
        if open_requests(state) and not requests and "resume" not in task.input:  # dropped for a new message
            meta.current_node, node = START, meta.current_node
            entries = await self._tool_steps.close_calls(
                graph, state, task.run, node, "the question it asked was dropped"
            )
        meta.thread_id = task.run.thread_id
        meta.step = 0
        meta.internal_data.pop("error", None)
        if meta.status == ExecutionStatus.COMPLETED or meta.current_node == END:
            meta.current_node = START
        meta.clear_interrupt()
        messages = _input_messages(task.input.get("messages"), task.run)
        if not messages and not state.context:
            raise InputError(
                f"thread {task.run.thread_id!r} has no messages yet; start it with "
                '{"messages": [{"role": "user", "content": "..."}]}'
            )
        _append_input(state, messages, task.run)
        updates = task.input.get("state") or {}
        try:
            state.apply({name: value for name, value in updates.items() if name != "execution_meta"})
        except (ValueError, KeyError, AttributeError) as exc:
            raise InputError(f"input['state'] does not fit: {problems(exc)}") from exc
        if meta.current_node == START:
            meta.current_node = await graph.entry(state)
        elif (at := graph.nodes.get(meta.current_node)) and at.tools is not None and is_answered(state):
            meta.current_node = await graph.next_node(state, at.name)  # where its run ended without getting there
        return requests, entries, not paused

    def _resumed(self, state: AgentState, task: BeginTask) -> list[InterruptRequest]:
        """Take the answer that the input brings to a thread that was left waiting; what it still waits for."""
        requests = open_requests(state)
        if "resume" not in task.input:
            if not requests or not (task.input.get("messages") or task.input.get("state")):
                return requests
            if not task.config.get("drop_interrupts"):
                asked = ", ".join(f"{request.id} ({request.message or request.reason})" for request in requests)
                raise InputError(
                    f"thread {task.run.thread_id!r} waits for an answer to {asked}; resume it with "
                    '{"resume": value}, or drop the question with config {"drop_interrupts": true}'
                )
            return []
        wanted = task.input.get("interrupt_id")
        matching = [request for request in requests if wanted in (None, request.id)]
        if len(matching) != 1:
            ids = ", ".join(request.id for request in requests) or "none"
            raise InputError(
                f"thread {task.run.thread_id!r} cannot be resumed by this answer: its open interrupts are {ids}; "
                "name one of them as interrupt_id"
                if requests
                else f"thread {task.run.thread_id!r} is not paused at an interrupt: there is nothing to resume"
            )
        problem = answer_problem(matching[0], task.input["resume"])
        if problem:
            raise InputError(f"the answer does not fit the interrupt's response_schema: {problem}")
        take_answer(state, matching[0], task.input["resume"])
        return [request for request in requests if request is not matching[0]]


def _check_gates(graph: CompiledGraph, config: Mapping[str, Any]) -> None:
    """Unlike other wrong settings, these do not fall back: somebody wants to look before the run goes on."""
    for key in ("interrupt_before", "interrupt_after"):
        value = config.get(key) or []
        if not isinstance(value, list) or not all(isinstance(name, str) and name in graph.nodes for name in value):
            known = ", ".join(graph.nodes)
            raise InputError(f"config[{key!r}]={value!r} is not a list of nodes of graph {graph.name!r} ({known})")


async def _pass_finished_node(graph: CompiledGraph, state: AgentState) -> None:
    """10xGraph names the node that a running thread has finished, where we name the one that is next.

    Going on from there as it does would ask the model again, and the tools that it had asked for would run again.
    """
    meta = state.execution_meta
    if meta.status == ExecutionStatus.RUNNING and meta.current_node in graph.nodes:
        meta.current_node = await graph.next_node(state, meta.current_node)


def _input_messages(value: Any, run: RunRef) -> list[Message]:
    """The input's messages; those without an id get one that is the same on every attempt."""
    if value is None:
        return []
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise InputError(f"input['messages'] is a {type(value).__name__}; pass a list of messages")
    messages = []
    for index, item in enumerate(value):
        data = {"role": "user", "content": item} if isinstance(item, str) else item
        if isinstance(data, Mapping) and not data.get("message_id"):
            data = {**data, "message_id": reidentified(run.thread_id, f"{run.run_id}/{index}")}
        try:
            messages.append(Message.model_validate(data))
        except ValidationError as exc:
            raise InputError(f"input['messages'][{index}] is no message: {problems(exc)}") from None
    return messages


def _append_input(state: AgentState, messages: list[Message], run: RunRef) -> None:
    """Append the messages that are new; a user message sent again as a new turn counts as new."""
    known = {message.message_id for message in state.context}
    new = [message for message in messages if message.message_id not in known]
    if messages and not new and messages[-1].role == "user" and state.context[-1].role != "user":
        repeated = messages[-1]
        new = [repeated.model_copy(update={"message_id": reidentified(run.thread_id, run.run_id)})]
    for message in new:
        settle_identity(message, run.thread_id)
    state.context = [*state.context, *new]
