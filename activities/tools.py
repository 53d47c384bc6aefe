"""Running tool calls: one per activity, or all calls of a message in one."""

from __future__ import annotations

from ..runtime.wire import ToolOutcome, ToolTask
from .host import Host, raises_failures
from .tool_call import ToolCall


class ToolRunner:
    """The activity behind every ``tool:<name>``."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @raises_failures
    async def run(self, task: ToolTask) -> ToolOutcome:
        """Replay the call's recorded result, or run the tool and record what it returned."""
        tool = self._host.graph(task.run.graph).tool(task.node, task.tool)
        return await ToolCall(self._host, task, tool).run()
