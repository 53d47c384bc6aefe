"""Stopping a run, and what a stopped thread looks like."""

from __future__ import annotations

import asyncio
import time

import pytest
from temporalio.client import WorkflowExecutionStatus

from tenxgraph_temporal import AgentState, RunHandle
from tenxgraph_temporal.runtime.client import RunStopped
from tenxgraph_temporal.runtime.state.blocks import ToolResultBlock


async def status_of(run: RunHandle) -> WorkflowExecutionStatus | None:
    return (await run.workflow.describe()).status


async def stopped(run: RunHandle, *, within: float) -> None:
    """Stop it and wait for its end."""
    await run.stop()
    started = time.monotonic()
    with pytest.raises(RunStopped):
        await run.result()
    assert time.monotonic() - started < within, time.monotonic() - started
    assert await status_of(run) == WorkflowExecutionStatus.CANCELED


async def ended(run: RunHandle, *, within: float = 30) -> str:
    """Wait for the end of a run; the status that its thread should have."""
    try:
        await asyncio.wait_for(run.result(), within)
    except RunStopped:
        return "interrupted_after"
    return "completed"


def results(state: AgentState) -> dict[str, str]:
    """What the model was told, by call."""
    return {
        block.call_id: message.text()
        for message in state.context
        if message.role == "tool"
        for block in message.content
        if isinstance(block, ToolResultBlock)
    }


def assert_saved_as_stopped(state: AgentState) -> None:
    meta = state.execution_meta
    assert meta.status == "interrupted_after", meta
    assert "stop_requested" in str(meta), meta
