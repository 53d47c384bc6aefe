"""Running a blocking function beside the event loop, one daemon thread per call.

Not a pool: a function that never returns then costs its own thread and nobody else's slot, and never keeps
the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable
from typing import Any

from .errors import WorkerExhausted


class ThreadInterrupted(BaseException):
    """Raised inside a running function by ``ThreadCall.interrupt``; not an ``Exception``, like a cancel."""


class ThreadCall:
    """One call in a thread of its own; ``future`` has its result.

    The caller's context variables are visible in the thread.

    Raises:
        WorkerExhausted: The system refused the thread; the function was not called.
    """

    def __init__(self, function: Callable[..., Any], kwargs: dict[str, Any], *, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()
        self._lock = threading.Lock()
        self._running = True
        self._context = contextvars.copy_context()
        self._thread = threading.Thread(target=self._run, args=(function, kwargs), name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as exc:
            raise WorkerExhausted(
                f"{name} did not begin: {exc}; its worker is short of memory, or at its limit of threads: raise that, "
                "or lower TENXGRAPH_MAX_CONCURRENT_ACTIVITIES"
            ) from exc

    def interrupt(self) -> None:
        """Raise ``ThreadInterrupted`` in the function at its next bytecode, if it still runs."""
        with self._lock:
            if self._running and self._thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread.ident), ctypes.py_object(ThreadInterrupted)
                )

    def _run(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            try:
                result = self._context.run(function, **kwargs)
            except BaseException as exc:
                error = exc
            with self._lock:
                self._running = False
        except ThreadInterrupted as exc:  # it arrived between the function's end and the lock
            error = error or exc
        try:
            self._loop.call_soon_threadsafe(self._finish, result, error)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    def _finish(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        elif isinstance(error, StopIteration):  # a future cannot carry it
            self.future.set_exception(RuntimeError(f"the function raised StopIteration: {error}"))
        else:
            self.future.set_exception(error)
            self.future.exception()  # seen: an abandoned call is not an unhandled error
