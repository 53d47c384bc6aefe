"""Running one node: load, call, commit."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ..runtime.errors import NodeError, NodeTimeoutError, TenxGraphError, WorkerExhausted
from ..runtime.graph import CompiledGraph
from ..runtime.graph.advance import advance, position_at
from ..runtime.graph.node import Node, apply_result
from ..runtime.interrupt import (
    GraphInterrupt,
    InterruptRequest,
    Scope,
    answers_of,
    clear_answers,
    interrupt_scope,
    show_requests,
)
from ..runtime.limits import RunConfig
from ..runtime.state import AgentState
from ..runtime.storage.snapshot import Snapshot
from ..runtime.tools.context import RunContext
from ..runtime.tools.identity import settle_identity
from ..runtime.tools.result import describe_error
from ..runtime.wire import NodeTask, Position, name_in
from .attempt import CutShort, Deadline, DeadlineExceeded, Pulse, is_first_attempt, run_code
from .host import Host, boundary
from .tool_steps import ToolSteps


class NodeRunner:
    """The activity behind every ``node:<name>``."""

    def __init__(self, host: Host, tool_steps: ToolSteps) -> None:
        self._host = host
        self._tool_steps = tool_steps

    @boundary
    async def run(self, task: NodeTask) -> Position:
        """Run the node on its state and commit what it returned; where that is done already, run nothing."""
        with Pulse() as pulse:
            position = await self._run(task, pulse)
        if position.local and activity.info().attempt == 1:
            self._host.fresh.add(task.run, position.step)
        return position

    async def _run(self, task: NodeTask, pulse: Pulse) -> Position:
        host = self._host
        name = name_in(activity.info().activity_type)
        at = task.version, task.unsaved
        if task.tools is not None:
            before = task.tools.model_copy(update={"run": task.run})
            position = await self._tool_steps.commit_step(before)
            if position.at not in ((before.version + 1, 0), (before.version, before.unsaved + 1)):
                return position  # the run went on from here before
            if position.next != "node" or position.node != name or position.interrupts:
                return position
            at = position.at
        base = await host.states.at(task.run, *at, first_attempt=is_first_attempt(task.run))
        if isinstance(base, Position):
            return base
        graph = host.graph(task.run.graph)
        node = graph.node(name)
        state = base.decode(graph.state_class)
        known_ids = frozenset(message.message_id for message in state.context)
        config = RunConfig.of(base.config)
        attributes = {"node": node.name}
        host.metrics.node_executions.add(1, attributes)
        started = time.monotonic()
        try:
            result = await self._call(node, task, base, state, pulse)
            state, goto = apply_result(node.name, state, result)
        except GraphInterrupt as pause:
            return await self._pause(graph, task, base, pause.request)
        except TenxGraphError:
            host.metrics.node_errors.add(1, attributes)
            raise
        finally:
            host.metrics.node_duration.record(time.monotonic() - started, attributes)
        clear_answers(state)
        for message in state.context:
            if message.message_id not in known_ids:
                settle_identity(message, task.run.thread_id)
        position = await advance(graph, state, config=config, version=base.version + 1, goto=goto)
        return await host.states.commit(
            task.run,
            base,
            state,
            position,
            step=task.step,
            node=node.name,
            kind="node",
            config=base.config,
            known_ids=known_ids,
        )

    async def _pause(self, graph: CompiledGraph, task: NodeTask, base: Snapshot, request: InterruptRequest) -> Position:
        """Commit that the node waits for an answer; what it had changed so far it will change again."""
        state = base.decode(graph.state_class)
        config = RunConfig.of(base.config)
        position = position_at(graph, state, config=config, version=base.version + 1)
        show_requests(state, [request])
        self._host.metrics.interrupts_opened.add(1, {"node": request.node})
        return await self._host.states.commit(
            task.run,
            base,
            state,
            position.model_copy(update={"interrupts": (request.ref,)}),
            step=task.step,
            node=request.node,
            kind=f"pause/{request.id}",
            config=base.config,
            known_ids=frozenset(message.message_id for message in state.context),
        )

    async def _call(self, node: Node, task: NodeTask, base: Snapshot, state: AgentState, pulse: Pulse) -> object:
        info = activity.info()
        context = RunContext(
            thread_id=task.run.thread_id,
            user_id=task.run.user_id,
            run_id=task.run.run_id,
            node=node.name,
            attempt=info.attempt,
            last_heartbeat=info.heartbeat_details,
            _beat=pulse.report,
        )
        config = {
            **base.config,
            "thread_id": task.run.thread_id,
            "user_id": task.run.user_id,
            "run_id": task.run.run_id,
        }
        if node.function is None:
            raise NodeError(f"node {node.name!r} is a tool node; its calls run as activities of their own")
        try:
            scope = Scope(node.name, f"{task.run.thread_id}\0{task.run.run_id}\0{task.step}", answers_of(state))
            await self._host.faults.reach("node.called", node.name)
            with interrupt_scope(scope):
                result = await run_code(
                    node.function,
                    node.bind(state, config, context),
                    name=f"node {node.name!r}",
                    is_async=node.is_async,
                    context=context,
                    deadline=Deadline.of_activity(),
                    grace=self._host.cancel_grace,
                )
            await self._host.faults.reach("node.returned", node.name)
            return result
        except DeadlineExceeded as exc:
            self._host.metrics.node_timeouts.add(1, {"node": node.name})
            raise NodeTimeoutError(
                f"node {node.name!r} exceeded its node_timeout of {exc.seconds:g} s; raise it, or give what hangs "
                "a timeout of its own"
            ) from None
        except (CutShort, WorkerExhausted):
            raise
        except asyncio.CancelledError:
            self._host.metrics.node_stopped.add(1, {"node": node.name})
            raise
        except Exception as exc:
            delay = node.retry.delay(info.attempt, exc) if node.retry else None
            error = NodeError(f"node {node.name!r} failed: {describe_error(exc)}")
            if delay is None:
                raise error from exc
            raise ApplicationError(error.text, type=error.code, next_retry_delay=timedelta(seconds=delay)) from exc
