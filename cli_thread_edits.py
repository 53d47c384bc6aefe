"""Commands that change threads: threads fork | edit | delete | purge."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from .cli_output import (
    AsJson,
    AsUser,
    CommandError,
    opened_cache,
    opened_store,
    out,
    out_json,
    parse_duration,
    parse_object,
    run_async,
    when,
)
from .cli_runs import Thread, run_is_open
from .runtime.connect import connect
from .runtime.storage.contract import Committed
from .runtime.threads import delete_thread, edit_thread, fork_thread

_PAGE = 100

Force = Annotated[bool, typer.Option("--force", help="Also threads whose run is open; Temporal is not asked.")]


def fork(
    thread: Thread,
    new_thread: Annotated[str, typer.Argument(help="The id of the copy.")],
    version: Annotated[int | None, typer.Option(min=1, help="Copy this version; the newest by default.")] = None,
    user: AsUser = None,
    as_json: AsJson = False,
) -> None:
    """Copy a thread, as it is or was, into a new one of the same user.

    Example: tenxgraph-temporal threads fork order-4821 order-4821-b --version 7
    """

    async def copy() -> None:
        async with opened_store() as store:
            await fork_thread(store, thread, new_thread, user_id=user, version=version)

    run_async(copy())
    if as_json:
        out_json({"thread_id": new_thread, "forked_from": thread, "version": version})
    else:
        out(f"thread {new_thread} is a copy of {thread}" + (f" at version {version}" if version else ""))


def edit(
    thread: Thread,
    changes: Annotated[str, typer.Argument(help="New values of fields, as a JSON object.")],
    version: Annotated[int, typer.Option(min=1, help="The version that the edit was made from; see `show`.")],
    user: AsUser = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Replace fields of a thread's state. If the thread has moved on since the version, nothing is written.

    Example: tenxgraph-temporal threads edit order-4821 '{"context_summary": null}' --version 7
    """
    values = parse_object(changes, "CHANGES") or {}

    async def write() -> Committed:
        await _refuse_open(thread, force)
        async with opened_store() as store, opened_cache() as cache:
            return await edit_thread(store, thread, values, version=version, user_id=user, cache=cache)

    done = run_async(write())
    if as_json:
        out_json({"thread_id": thread, "version": done.version})
    else:
        out(f"thread {thread} is at version {done.version}")


def delete(thread: Thread, user: AsUser = None, force: Force = False, as_json: AsJson = False) -> None:
    """Delete a thread with its states, messages and tool ledger. There is no way back.

    Example: tenxgraph-temporal threads delete order-4821
    """

    async def remove() -> bool:
        await _refuse_open(thread, force)
        async with opened_store() as store, opened_cache() as cache:
            return await delete_thread(store, thread, user_id=user, cache=cache)

    if not run_async(remove()):
        raise CommandError(f"there is no thread {thread!r}; see: tenxgraph-temporal threads")
    if as_json:
        out_json({"thread_id": thread, "deleted": True})
    else:
        out(f"thread {thread} deleted")


def purge(
    older_than: Annotated[str, typer.Option(help="Not updated for so long: 30d, 12h, 2w.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Delete threads that were not updated for a while. There is no way back.

    Threads whose run is open, such as those that wait for an answer, stay.

    Example: tenxgraph-temporal threads purge --older-than 30d --yes
    """
    cutoff = datetime.now(UTC) - parse_duration(older_than, "--older-than")
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete all threads not updated since {when(cutoff)}?", abort=True, err=True)
    deleted, kept = run_async(_purge(cutoff, force=force))
    if as_json:
        out_json({"deleted": deleted, "kept_open": kept, "older_than": cutoff})
    else:
        out(f"{deleted} threads deleted" + (f"; {kept} kept, their runs are open" if kept else ""))


async def _purge(cutoff: datetime, *, force: bool) -> tuple[int, int]:
    deleted = kept = 0
    async with opened_store() as store, opened_cache() as cache:
        if force:
            while count := await store.purge(older_than=cutoff, batch=_PAGE):
                deleted += count
            return deleted, 0
        client = await connect()
        before, last = cutoff, None
        while page := await store.list_threads(limit=_PAGE, before=before, before_thread=last):
            for info in page:
                if await run_is_open(client, info.thread_id):
                    kept += 1
                else:
                    deleted += await delete_thread(store, info.thread_id, cache=cache)
            before, last = page[-1].updated_at, page[-1].thread_id
    return deleted, kept


async def _refuse_open(thread_id: str, force: bool) -> None:
    if not force and await run_is_open(await connect(), thread_id):
        raise CommandError(
            f"a run of thread {thread_id!r} is open; end it first: tenxgraph-temporal stop {thread_id} --wait"
        )
