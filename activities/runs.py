"""The commits of a run that are not a node's: its beginning, the results of a tool step, an early end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from temporalio import activity

from ..runtime.errors import InputError, NodeError, StaleStateError
from ..runtime.graph import CompiledGraph
from ..runtime.graph.advance import (
    advance,
    call_name,
    enter,
    failed_position,
    insert_answers,
    open_calls,
)
from ..runtime.interrupt import (
    InterruptRequest,
    answer_problem,
    clear_answers,
    open_requests,
    show_requests,
    take_answer,
)
from ..runtime.limits import RunConfig
from ..runtime.state import END, START, AgentState, ExecutionStatus, Message
from ..runtime.storage.contract import LedgerEntry
from ..runtime.storage.thread_states import Snapshot
from ..runtime.tools.identity import ledger_key, reidentified, settle_identity
from ..runtime.tools.merge import merge_results
from ..runtime.tools.result import CallResult, call_metadata, failure, from_envelope
from ..runtime.wire import (
    BEGIN_ACTIVITY,
    CLOSE_ACTIVITY,
    COMMIT_TOOLS_ACTIVITY,
    BeginTask,
    CloseTask,
    CommitToolsTask,
    Position,
    RunRef,
)
from .attempt import is_first_attempt
from .host import Host, boundary


class RunCommits:
    """Local activities of the run loop: short, without effects outside the thread."""

    def __init__(self, host: Host) -> None:
        self._host = host

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
        requests = self._resumed(state, task)
        paused = meta.is_interrupted
        entries: list[LedgerEntry] = []
        if open_requests(state) and not requests and "resume" not in task.input:  # dropped for a new message
            meta.current_node, node = START, meta.current_node
            entries = await self._close_calls(graph, state, task.run, node, "the question it asked was dropped")
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
        except (ValidationError, KeyError, AttributeError) as exc:
            raise InputError(f"input['state'] does not fit: {exc}") from exc
        if meta.current_node == START:
            meta.current_node = await graph.entry(state)
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

    @activity.defn(name=COMMIT_TOOLS_ACTIVITY)
    @boundary
    async def commit_tools(self, task: CommitToolsTask) -> Position:
        """Commit a tool step."""
        return await self.commit_step(task)

    async def commit_step(self, task: CommitToolsTask) -> Position:
        """Merge the results of a message's calls in call order, append them, resolve the next node."""
        base = await self._host.states.at(task.run, task.version, first_attempt=is_first_attempt(task.run))
        if isinstance(base, Position):
            return base
        graph = self._host.graph(task.run.graph)
        state = base.decode(graph.state_class)
        message, calls = open_calls(state)
        if message is None or message.message_id != task.message_id:
            raise NodeError(f"message {task.message_id!r} has no open tool calls in thread {task.run.thread_id!r}")
        told = {outcome.tool_call_id: outcome for outcome in task.outcomes}
        results, entries = [], []
        recorded = await self._recorded(task.run, message, calls)
        for call in calls:
            call_id, name = call["id"], call_name(call)
            result = recorded.get(call_id)
            if result is None:
                outcome = told.get(call_id)
                metadata = call_metadata(call_id, name, {})
                if outcome is not None and outcome.unrecorded is not None:
                    result = from_envelope(outcome.unrecorded, tool_call_id=call_id, metadata=metadata)
                if result is None:
                    error = outcome.error if outcome and outcome.error else _no_such_tool(graph, task.node, name)
                    result = failure(error, tool_call_id=call_id, metadata=metadata)
                entries.append(_entry(message.message_id, call_id, name, result))
            results.append(result)
        goto = merge_results(state, base.decode(graph.state_class), results, node=task.node)
        return await self._answer(task, graph, base, state, message, results, entries, goto)

    async def _answer(
        self,
        task: CommitToolsTask,
        graph: CompiledGraph,
        base: Snapshot,
        state: AgentState,
        message: Message,
        results: list[CallResult],
        entries: list[LedgerEntry],
        goto: str | None,
    ) -> Position:
        known_ids = frozenset(m.message_id for m in state.context)
        clear_answers(state)
        answers = [result.message for result in results]
        for answer in answers:
            settle_identity(answer, task.run.thread_id)
        insert_answers(state, message.message_id, answers)
        config = RunConfig.of(base.config)
        position = await advance(graph, state, config=config, version=task.version + 1, goto=goto)
        return await self._host.states.commit(
            task.run,
            base,
            state,
            position,
            step=task.step,
            node=task.node,
            kind="tools",
            config=base.config,
            results=entries if self._host.use_ledger else (),
            known_ids=known_ids,
        )

    async def _recorded(self, run: RunRef, message: Message, calls: list[dict[str, Any]]) -> dict[str, CallResult]:
        """The calls' results that are in the ledger, by call id."""
        if not self._host.use_ledger:
            return {}
        keys = {key: call for call in calls if (key := ledger_key(message.message_id, call["id"]))}
        rows = await self._host.store.lookup(run.thread_id, list(keys)) if keys else {}
        found = {}
        for key, envelope in rows.items():
            call = keys[key]
            metadata = call_metadata(call["id"], call_name(call), {})
            result = from_envelope(envelope, tool_call_id=call["id"], metadata=metadata)
            if result is not None:
                found[call["id"]] = result
        return found

    @activity.defn(name=CLOSE_ACTIVITY)
    @boundary
    async def close(self, task: CloseTask) -> Position:
        """Save that a run ended before its end; where it had ended already, only say so."""
        while True:
            position = await self._close(task)
            if position.next in ("end", "fail"):
                return position
            # A step of this run was committed meanwhile, by an attempt that was given up: close after it.

    async def _close(self, task: CloseTask) -> Position:
        states = self._host.states
        base = await states.head(task.run)
        if base is None or base.origin is None or base.origin.run_id != task.run.run_id:
            # Nothing of this run is in the thread, or another one has gone on: there is nothing to save.
            return Position(version=base.version if base else 0, step=0, node=END, next="fail", code=task.code)
        position = Position.model_validate(base.origin.position)
        if position.next in ("end", "fail"):
            return position
        graph = self._host.graph(task.run.graph)
        state = base.decode(graph.state_class)
        known_ids = frozenset(message.message_id for message in state.context)
        entries: list[LedgerEntry] = []
        if task.status == "stopped":
            stopped_at = state.execution_meta.current_node
            entries = await self._close_calls(
                graph, state, task.run, stopped_at, "the run was stopped before it finished"
            )
            node = state.execution_meta.current_node
            state.execution_meta.set_interrupt(
                node, "stop_requested", ExecutionStatus.INTERRUPTED_AFTER, {"source": "stop", "info": None}
            )
            final = position.model_copy(
                update={"version": base.version + 1, "next": "fail", "code": "STOPPED", "calls": ()}
            )
        else:
            error = NodeError(task.error, code=task.code)
            final = failed_position(state, error, version=base.version + 1)
        return await states.commit(
            task.run,
            base,
            state,
            final,
            step=position.step,
            node=position.node,
            kind="close",
            config=base.config,
            results=entries if self._host.use_ledger else (),
            known_ids=known_ids,
        )

    async def _close_calls(
        self, graph: CompiledGraph, state: AgentState, run: RunRef, at: str, why: str
    ) -> list[LedgerEntry]:
        """Answer the open calls of a step that ends early: what finished as it finished, the rest as cancelled."""
        clear_answers(state)
        node = graph.nodes.get(at)
        message, calls = open_calls(state)
        if node is None or node.tools is None or message is None:
            return []
        recorded = await self._recorded(run, message, calls)
        baseline = state.model_copy(deep=True)
        results, entries = [], []
        for call in calls:
            call_id, name = call["id"], call_name(call)
            result = recorded.get(call_id)
            if result is None:
                result = failure(
                    f"Tool {name!r} was cancelled: {why}.",
                    tool_call_id=call_id,
                    metadata=call_metadata(call_id, name, {}),
                    code="CANCELLED",
                )
                entries.append(_entry(message.message_id, call_id, name, result, status="cancelled"))
            settle_identity(result.message, run.thread_id)
            results.append(result)
        goto = merge_results(state, baseline, results, node=node.name)
        insert_answers(state, message.message_id, [result.message for result in results])
        # The step is closed: a next run goes on behind it.
        state.execution_meta.current_node = goto or await graph.next_node(state, node.name)
        return entries


def _entry(message_id: str, call_id: str, tool: str, result: CallResult, *, status: str | None = None) -> LedgerEntry:
    key = ledger_key(message_id, call_id)
    assert key is not None
    return LedgerEntry(
        ledger_key=key,
        envelope=result.envelope,
        tool=tool,
        status=status or ("failed" if result.failed else "finished"),
    )


def _no_such_tool(graph: CompiledGraph, node: str, name: str) -> str:
    tools = graph.node(node).tools
    known = ", ".join(tools.tools) if tools else ""
    return f"Tool {name!r} does not exist. The tools are: {known}."


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
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors())
            raise InputError(f"input['messages'][{index}] is no message: {problems}") from None
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
