"""Claiming a call before it runs, for tools whose doubt matters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from datetime import timedelta
from functools import cached_property
from types import TracebackType

from temporalio import activity

from ..runtime.errors import RetryableError, TenxGraphError
from ..runtime.storage.contract import Claimed, Held, InDoubt, Intent, Recorded
from ..runtime.tools.result import CallResult, call_metadata, failure
from ..runtime.tools.tool import Tool
from ..runtime.wire import ToolTask
from .host import Host

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=12)
"""How long a claim outlives the last sign of life of its worker."""
_RENEWAL = 4.0
_POLL = 0.5


class Claims:
    """Holds the claim of one attempt at one call; for ``in_doubt="rerun"`` it does nothing at all.

    After entering, ``recorded`` tells that another attempt's result is there, and ``doubt`` that an earlier
    attempt was lost between its start and its record.
    """

    def __init__(self, host: Host, task: ToolTask, tool: Tool, key: str | None) -> None:
        self._store = host.store
        self._metrics = host.metrics
        self._thread_id = task.run.thread_id
        self._tool = tool
        self._attributes = {"node": task.node, "tool": tool.name}
        self._key = key if tool.in_doubt != "rerun" else None
        self._worker = host.worker
        self._renewal: asyncio.Task[None] | None = None
        self.recorded = False
        self.doubt: InDoubt | None = None

    @cached_property
    def _intent(self) -> Intent:
        info = activity.info()
        return Intent(
            ledger_key=self._key or "",
            owner=f"{info.activity_id}/{info.attempt}/{uuid.uuid4()}",
            lease=LEASE,
            tool=self._tool.name,
            attempt=info.attempt,
            worker=self._worker,
        )

    async def __aenter__(self) -> Claims:
        if self._key is None:
            return self
        while True:
            claim = await self._store.claim(self._thread_id, self._intent)
            if isinstance(claim, Claimed):
                self._renewal = asyncio.create_task(self._renew())
                return self
            if isinstance(claim, Recorded):
                self.recorded = True
                return self
            if isinstance(claim, InDoubt):
                self.doubt = claim
                self._metrics.ledger_in_doubt.add(1, self._attributes)
                logger.warning(
                    "call %s is in doubt: attempt %d on %s started it at %s and was lost",
                    self._key,
                    claim.attempt,
                    claim.worker,
                    claim.started_at.isoformat(),
                )
                return self
            assert isinstance(claim, Held)
            await asyncio.sleep(min(claim.remaining.total_seconds() + 0.05, _POLL))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewal

    async def take_over(self) -> None:
        """Somebody decided that the doubtful call is to be made again: claim it for this attempt.

        Raises:
            RetryableError: Another attempt was quicker; its outcome is looked up by the next one.
        """
        assert self._key is not None
        claim = await self._store.take_over(self._thread_id, self._intent)
        if not isinstance(claim, Claimed):
            raise RetryableError(f"call {self._key} was claimed by another attempt")
        self._renewal = asyncio.create_task(self._renew())

    async def release(self) -> None:
        """The call is to be made again, as if it had not been claimed."""
        if self._renewal is not None and self._key is not None:
            await self._store.release(self._thread_id, self._key, self._intent.owner)

    def doubtful_result(self, task: ToolTask) -> CallResult:
        """What the model is told about a call whose outcome nobody knows."""
        assert self.doubt is not None
        return failure(
            f"The outcome of {self._tool.name!r} is unknown: an earlier attempt started it at "
            f"{self.doubt.started_at.isoformat(timespec='seconds')} and was lost before its result was "
            "recorded. It may or may not have taken effect. Verify before trying again.",
            tool_call_id=task.tool_call_id,
            metadata=call_metadata(task.tool_call_id, self._tool.name, {}),
            code="IN_DOUBT",
        )

    async def _renew(self) -> None:
        assert self._key is not None
        while True:
            await asyncio.sleep(_RENEWAL)
            try:
                if not await self._store.renew(self._thread_id, self._key, self._intent.owner, LEASE):
                    logger.error("the claim of %s was taken over while it was running", self._key)
                    return
            except TenxGraphError as exc:
                logger.warning("the claim of %s could not be renewed: %s", self._key, exc)
