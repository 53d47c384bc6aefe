"""How long things may take and how often they are tried: what authors write, and what it defaults to."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from .errors import GraphDefinitionError
from .wire import UNBOUNDED

logger = logging.getLogger(__name__)

DEFAULT_NODE_TIMEOUT = 900.0
DEFAULT_TOOL_TIMEOUT = 300.0
DEFAULT_RECURSION_LIMIT = 25

Timeout = float | timedelta | None
"""Seconds. ``None`` and non-positive values mean unbounded."""


class Unset:
    """No value was given: the next level's default applies."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Opt-in repetition of a node or tool that raised.

    Args:
        max_attempts: All attempts together, those lost with their worker included.
        on: The errors that qualify; any other one is final at once.
        interval: Seconds before the second attempt; doubles up to ``max_interval``. An error with a
            ``retry_after`` attribute (seconds), or with a ``Retry-After`` header of its own or its ``response``'s
            (seconds or a date), says itself.
    """

    max_attempts: int = 3
    on: tuple[type[BaseException], ...] = (Exception,)
    interval: float = 1.0
    max_interval: float = 60.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.interval < 0 or self.max_interval < self.interval:
            raise GraphDefinitionError(f"{self!r}: attempts start at 1, and intervals must not shrink")

    def delay(self, attempt: int, error: BaseException) -> float | None:
        """Seconds to wait after ``attempt`` (from 1) failed with ``error``; ``None`` if it was the last."""
        if attempt >= self.max_attempts or not isinstance(error, self.on):
            return None
        asked = _retry_after(error)
        if asked is not None:
            return asked
        doubled = self.interval * 2.0 ** min(attempt - 1, 64)  # a float's exponent has an end
        return min(doubled, self.max_interval, UNBOUNDED.total_seconds())


def _retry_after(error: BaseException) -> float | None:
    """Seconds that the error asks to wait for; ``None`` if it says nothing, or nothing that can be read."""
    value: Any = getattr(error, "retry_after", None)
    if value is None:
        for holder in (getattr(error, "response", None), error):
            headers = getattr(holder, "headers", None)
            get = getattr(headers, "get", None)  # httpx, requests and aiohttp have mappings, urllib has a message
            value = (get("Retry-After") or get("retry-after")) if callable(get) else None
            if value is not None:
                break
    if value is None:
        return None
    try:
        asked = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except (TypeError, ValueError):
        try:
            asked = parsedate_to_datetime(value).timestamp() - time.time()
        except (AttributeError, IndexError, TypeError, ValueError, OverflowError):
            return None
    return None if math.isnan(asked) else min(max(0.0, asked), UNBOUNDED.total_seconds())


def seconds(value: Any, *, default: float | None, name: str) -> float | None:
    """A timeout as written by a user, in seconds; ``None`` is unbounded. A wrong value warns and defaults."""
    if isinstance(value, Unset):
        return default
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError("a boolean")
        number = value.total_seconds() if isinstance(value, timedelta) else float(value)
        if math.isnan(number):
            raise ValueError("not a number")
    except (TypeError, ValueError, OverflowError):
        logger.warning("%s=%r is not a number of seconds; using %s", name, value, default)
        return default
    return None if number <= 0 or number >= UNBOUNDED.total_seconds() else number


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The run's ``config``, read once. Invalid values warn and fall back, as in 10xGraph."""

    raw: Mapping[str, Any] = field(default_factory=dict)
    recursion_limit: int = DEFAULT_RECURSION_LIMIT
    node_timeout: Timeout | Unset = UNSET
    tool_timeout: Timeout | Unset = UNSET
    durable: bool = True
    """``durable_checkpoint_every_step``: save every step, not only where the run pauses or ends."""

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> RunConfig:
        """Read ``raw``."""
        limit = raw.get("recursion_limit", DEFAULT_RECURSION_LIMIT)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            logger.warning("recursion_limit=%r is not a positive integer; using %d", limit, DEFAULT_RECURSION_LIMIT)
            limit = DEFAULT_RECURSION_LIMIT
        durable = raw.get("durable_checkpoint_every_step", True)
        if not isinstance(durable, bool):
            logger.warning("durable_checkpoint_every_step=%r is neither true nor false; using true", durable)
            durable = True
        return cls(
            raw=raw,
            recursion_limit=limit,
            node_timeout=raw.get("node_timeout", UNSET),
            tool_timeout=raw.get("tool_timeout", UNSET),
            durable=durable,
        )

    def names(self, key: str) -> frozenset[str]:
        """A list of nodes among the settings, e.g. ``interrupt_before``."""
        value = self.raw.get(key) or ()
        listed = isinstance(value, Iterable) and not isinstance(value, str)
        if not listed or not all(isinstance(name, str) for name in value):
            logger.warning("%s=%r is not a list of nodes' names; it is ignored", key, value)
            return frozenset()
        return frozenset(value)

    def node_seconds(self, own: Timeout | Unset) -> float | None:
        """The deadline of a node: the run's setting, else the node's own, else the default."""
        own_seconds = seconds(own, default=DEFAULT_NODE_TIMEOUT, name="timeout of the node")
        return seconds(self.node_timeout, default=own_seconds, name="node_timeout")

    def tool_seconds(self, own: Timeout | Unset) -> float | None:
        """The deadline of a tool call, likewise."""
        own_seconds = seconds(own, default=DEFAULT_TOOL_TIMEOUT, name="timeout of the tool")
        return seconds(self.tool_timeout, default=own_seconds, name="tool_timeout")
