"""How a run ends before its end: stopped, or with an error."""

from __future__ import annotations

from temporalio import activity

from ..runtime.errors import NodeError
from ..runtime.graph.advance import failed_position
from ..runtime.state import END, ExecutionStatus
from ..runtime.storage.contract import LedgerEntry
from ..runtime.wire import CLOSE_ACTIVITY, CloseTask, Position
from .host import Host, boundary
from .tool_steps import ToolSteps


class RunClose:
    """The local activity ``run.close``."""

    def __init__(self, host: Host, tool_steps: ToolSteps) -> None:
        self._host = host
        self._tool_steps = tool_steps

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
            entries = await self._tool_steps.close_calls(
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
