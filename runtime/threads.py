"""Reading a thread from outside a run."""

from __future__ import annotations

from typing import Any

from .errors import InputError
from .state import AgentState
from .state.encoding import decode_state
from .storage.contract import Store


async def thread_state(
    store: Store,
    thread_id: str,
    state: type[AgentState] = AgentState,
    *,
    user_id: str | None = None,
    version: int | None = None,
) -> Any:
    """The state of a thread, as an instance of ``state``: the newest, or a kept ``version``.

    Args:
        store: An open store.
        thread_id: The thread.
        state: The graph's state class; plain ``AgentState`` reads any thread's messages.
        user_id: Who asks; ``None`` asks as operator.
        version: Counts from 1; old ones are pruned.

    Raises:
        InputError: There is no such thread or version.
        ForbiddenError: The thread belongs to another user.
    """
    if version is None:
        head = await store.load_head(thread_id, user_id)
    else:
        head = await store.load_version(thread_id, user_id, version)
    if head is None or head.fields is None:
        raise InputError(f"thread {thread_id!r} has no state" + (f" of version {version}" if version else ""))
    return decode_state(state, head.fields)
