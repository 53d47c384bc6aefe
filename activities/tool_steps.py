"""Committing a tool step: the calls' results, merged in call order, become messages and state."""

from __future__ import annotations

import logging
from typing import Any

from temporalio import activity

from ..runtime.errors import NodeError, RoutingError, TerminalError
from ..runtime.graph import CompiledGraph
from ..runtime.graph.advance import advance, call_name, insert_answers, open_calls
from ..runtime.interrupt import clear_answers
from ..runtime.limits import RunConfig
from ..runtime.state import AgentState, Message
from ..runtime.storage.contract import LedgerEntry
from ..runtime.storage.snapshot import Snapshot
from ..runtime.tools.identity import ledger_key, settle_identity
from ..runtime.tools.merge import merge_results
from ..runtime.tools.result import CallResult, call_metadata, failure, from_envelope
from ..runtime.wire import COMMIT_TOOLS_ACTIVITY, CommitToolsTask, Position, RunRef
from .attempt import is_first_attempt
from .host import Host, boundary

logger = logging.getLogger(__name__)


class ToolSteps:
    """The local activity ``run.commit_tools``, and what a step that ends early needs."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @activity.defn(name=COMMIT_TOOLS_ACTIVITY)
    @boundary
    async def commit_tools(self, task: CommitToolsTask) -> Position:
        """Commit a tool step."""
        return await self.commit_step(task)

    async def commit_step(self, task: CommitToolsTask) -> Position:
        """Merge the results of a message's calls in call order, append them, resolve the next node."""
        first = is_first_attempt(task.run)
        base = await self._host.states.at(task.run, task.version, task.unsaved, first_attempt=first)
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
        # Decoding is what a large state costs: no second copy where no call has changed anything.
        baseline = base.decode(graph.state_class) if any(result.state for result in results) else state
        goto = merge_results(state, baseline, results, node=task.node)
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
        position = await advance(graph, state, config=config, version=base.version + 1, goto=goto)
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

    async def close_calls(
        self, graph: CompiledGraph, state: AgentState, run: RunRef, at: str, why: str
    ) -> list[LedgerEntry]:
        """Answer the open calls of a step that ends early: what finished as it finished, the rest as cancelled."""
        clear_answers(state)
        node = graph.nodes.get(at)
        message, calls = open_calls(state)
        if node is None or node.tools is None or message is None:
            return []
        recorded = await self._recorded(run, message, calls)
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
        goto = _merged_if_it_can_be(state, results, node.name)
        insert_answers(state, message.message_id, [result.message for result in results])
        # The step is closed: a next run goes on behind it. A router may not expect calls that were cancelled.
        state.execution_meta.current_node = node.name
        try:
            state.execution_meta.current_node = await graph.following(state, node.name, goto)
        except RoutingError as exc:
            logger.warning("thread %s: the next run has to find the node after %r: %s", run.thread_id, node.name, exc)
        return entries


def _merged_if_it_can_be(state: AgentState, results: list[CallResult], node: str) -> str | None:
    """As ``merge_results``; what cannot be joined is left out, for the step has to be closed."""
    baseline = state.model_copy(deep=True)
    try:
        return merge_results(state, baseline, results, node=node)
    except TerminalError as exc:
        logger.warning("what the tools of node %r changed is lost, their results are not: %s", node, exc)
        state.__dict__.update(baseline.__dict__)
        return None


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
