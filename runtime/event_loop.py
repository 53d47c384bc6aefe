"""The event loop that our own processes run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loops where it is installed (the extra ``uvloop``), which take less CPU; else asyncio's own."""
    if find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on the best loop that there is."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
