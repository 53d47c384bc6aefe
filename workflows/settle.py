"""Waiting for the tasks of a step, across continue-as-new and cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from temporalio import workflow


async def settle(
    tasks: Sequence[asyncio.Task[Any]], should_roll_over: Callable[[], bool], roll_over: Callable[[], None]
) -> None:
    """Wait until all ``tasks`` have ended, however they did; a cancel reaches them all, and waits for them too.

    ``should_roll_over`` tells that the run ought to continue as new and that nothing but people are waited for;
    ``roll_over`` raises.
    """

    def settled() -> bool:
        return all(task.done() for task in tasks)

    def may_roll_over() -> bool:
        return workflow.all_handlers_finished() and should_roll_over()

    try:
        while not settled():
            await workflow.wait_condition(lambda: settled() or may_roll_over())
            # Asked again, and nothing awaited until the command is made: a task that woke at the same moment may have
            # taken an answer to commit it.
            if not settled() and may_roll_over():
                roll_over()
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
