"""Waiting for the tasks of a step, across continue-as-new and cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from temporalio import workflow


async def settle(
    tasks: Sequence[asyncio.Task[Any]], *, quiet: Callable[[], bool], roll_over: Callable[[], None]
) -> None:
    """Wait until all ``tasks`` have ended, however they did; a cancel reaches them all, and waits for them too.

    While nothing but people are waited for, which ``quiet`` tells, the run may continue as new: ``roll_over`` raises.
    """

    def settled() -> bool:
        return all(task.done() for task in tasks)

    def may_roll_over() -> bool:
        return workflow.info().is_continue_as_new_suggested() and workflow.all_handlers_finished() and bool(quiet())

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
