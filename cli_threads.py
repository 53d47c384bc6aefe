"""Commands that look at threads: show, and threads list | versions."""

from __future__ import annotations

import dataclasses
import shlex
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from .cli_output import (
    AsJson,
    AsUser,
    CommandError,
    note,
    opened_store,
    out,
    out_json,
    parse_time,
    run_async,
    shorten,
    table,
    when,
)
from .cli_runs import Thread
from .runtime.state import Message
from .runtime.state.encoding import load_json
from .runtime.storage.contract import CallRecord, Head, ThreadInfo

_PAGE = 100
_PAUSED = ("interrupted_before", "interrupted_after")

Limit = Annotated[int, typer.Option(min=1, help="At most so many.")]
Paused = Annotated[bool, typer.Option("--paused", help="Only those that wait for an answer, or were stopped.")]
Before = Annotated[
    str | None,
    typer.Option(help="Only those updated before this ISO 8601 time; or what a list says is next."),
]

app = typer.Typer()


# --- show ---------------------------------------------------------------------------------------------------


def show(
    thread: Thread,
    version: Annotated[int | None, typer.Option(min=1, help="An older version; the newest by default.")] = None,
    user: AsUser = None,
    as_json: AsJson = False,
) -> None:
    """Show where a thread stands: its messages, its tool calls, and what it waits for.

    Example: tenxgraph-temporal show order-4821
    """
    document = run_async(_load(thread, version, user))
    if as_json:
        out_json(document)
    else:
        _show(document)


async def _load(thread_id: str, version: int | None, user_id: str | None) -> dict[str, Any]:
    async with opened_store() as store:
        if version is None:
            head = await store.load_head(thread_id, user_id)
        else:
            head = await store.load_version(thread_id, user_id, version)
        if head is None or head.fields is None:
            which = f"thread {thread_id!r}" + (f" at a kept version {version}" if version is not None else "")
            raise CommandError(f"there is no {which}; see: tenxgraph-temporal threads")
        calls = await store.calls(thread_id)
    return _document(head, calls)


def _document(head: Head, calls: list[CallRecord]) -> dict[str, Any]:
    fields = {name: load_json(value) for name, value in (head.fields or {}).items()}
    meta = fields.get("execution_meta") or {}
    data = meta.get("interrupt_data") or {}
    requests = data.get("interrupts") or [data.get("interrupt")]
    return {
        "thread_id": head.thread_id,
        "user_id": head.user_id,
        "version": head.version,
        "status": meta.get("status", ""),
        "reason": meta.get("interrupt_reason"),
        "error": (meta.get("internal_data") or {}).get("error"),
        "node": meta.get("current_node", ""),
        "step": meta.get("step", 0),
        "interrupts": [request for request in requests if request],
        "messages": [_message(raw) for raw in fields.get("context") or []],
        "calls": [_call(call) for call in calls],
    }


def _message(raw: dict[str, Any]) -> dict[str, Any]:
    message = Message.model_validate(raw)
    calls = [call.get("function") or {} for call in message.tools_calls or ()]
    return {
        "message_id": message.message_id,
        "role": message.role,
        "text": message.text(),
        "tool_calls": [
            {"tool_call_id": call.get("id", ""), "tool": made.get("name", ""), "arguments": made.get("arguments", "")}
            for call, made in zip(message.tools_calls or (), calls, strict=True)
        ],
    }


def _call(call: CallRecord) -> dict[str, Any]:
    return {
        "tool": call.tool,
        "call_key": call.ledger_key,
        "status": call.status,
        "replays": call.replays,
        "attempt": call.attempt,
        "worker": call.worker,
        "at": call.at,
        "result": call.envelope,
    }


def _show(document: dict[str, Any]) -> None:
    out(f"thread   {document['thread_id']} (user {document['user_id']})")
    status = document["status"] + (f" ({document['reason']})" if document["reason"] else "")
    out(f"status   {status}, at {document['node']}, step {document['step']}, version {document['version']}")
    if document["error"]:
        out(f"error    {shorten(str(document['error']), 300)}")
    for request in document["interrupts"]:
        asked = request.get("message") or request.get("value") or request.get("reason", "")
        out(f"waits    {request.get('id', '')} ({request.get('key', '')}): {shorten(str(asked), 200)}")
        out(f"         tenxgraph-temporal resume {document['thread_id']} --id {request.get('id', '')} --value JSON")
    out("")
    rows = []
    for message in document["messages"]:
        asked = [f"{call['tool']}({shorten(str(call['arguments']), 60)})" for call in message["tool_calls"]]
        rows.append([message["role"], " ".join(filter(None, [shorten(message["text"], 160), *asked]))])
    out(table("role", "message", rows=rows))
    if document["calls"]:
        out("")
        rows = [
            [
                call["tool"],
                call["call_key"],
                call["status"].replace("_", " ") + _times(call["replays"]),
                str(call["attempt"]),
                call["worker"],
                when(call["at"]),
            ]
            for call in document["calls"]
        ]
        out(table("tool", "call", "status", "attempt", "worker", "time", rows=rows))


def _times(replays: int) -> str:
    return f", replayed {replays} time{'' if replays == 1 else 's'}" if replays else ""


# --- threads ------------------------------------------------------------------------------------------------


@app.callback(invoke_without_command=True)
def threads(
    context: typer.Context,
    user: AsUser = None,
    limit: Limit = 50,
    paused: Paused = False,
    before: Before = None,
    as_json: AsJson = False,
) -> None:
    """List threads, newest first; or show their versions, fork, edit, delete and purge them.

    Example: tenxgraph-temporal threads --paused --limit 10
    """
    if context.invoked_subcommand is None:
        list_threads(user, limit, paused, before, as_json)


@app.command("list")
def list_threads(
    user: AsUser = None,
    limit: Limit = 50,
    paused: Paused = False,
    before: Before = None,
    as_json: AsJson = False,
) -> None:
    """List threads, most recently updated first.

    Example: tenxgraph-temporal threads list --user alice --before 2026-01-31T12:00:00Z
    """
    at, _, after = (before or "").partition("/")
    found, more = run_async(_list(user, limit, paused, parse_time(at or None, "--before"), after or None))
    last = found[-1] if more and found else None
    next_before = f"{last.updated_at.astimezone(UTC).isoformat()}/{last.thread_id}" if last else None
    if as_json:
        out_json({"threads": [dataclasses.asdict(info) for info in found], "next_before": next_before})
        return
    rows = [
        [info.thread_id, info.user_id, info.status, str(info.version), when(info.updated_at), info.name]
        for info in found
    ]
    out(table("thread", "user", "status", "version", "updated", "name", rows=rows))
    if next_before:
        note(f"there are more: --before {shlex.quote(next_before)}")


async def _list(
    user_id: str | None, limit: int, paused: bool, before: datetime | None, before_thread: str | None
) -> tuple[list[ThreadInfo], bool]:
    found: list[ThreadInfo] = []
    async with opened_store() as store:
        while True:
            size = _PAGE if paused else limit + 1
            page = await store.list_threads(user_id=user_id, limit=size, before=before, before_thread=before_thread)
            found += [info for info in page if not paused or info.status in _PAUSED]
            if len(page) < size or len(found) > limit:
                return found[:limit], len(found) > limit
            before, before_thread = page[-1].updated_at, page[-1].thread_id


@app.command()
def versions(thread: Thread, user: AsUser = None, as_json: AsJson = False) -> None:
    """List the kept versions of a thread's state, newest first.

    Example: tenxgraph-temporal threads versions order-4821
    """

    async def load() -> list[dict[str, Any]]:
        async with opened_store() as store:
            found = await store.list_versions(thread, user)
        return [
            {
                "version": info.version,
                "created_at": info.created_at,
                "size_bytes": info.size_bytes,
                "run_id": info.origin.run_id if info.origin else None,
                "commit_id": info.origin.commit_id if info.origin else None,
            }
            for info in found
        ]

    found = run_async(load())
    if not found:
        raise CommandError(f"there is no thread {thread!r}; see: tenxgraph-temporal threads")
    if as_json:
        out_json({"thread_id": thread, "versions": found})
        return
    rows = [
        [str(v["version"]), when(v["created_at"]), str(v["size_bytes"]), v["commit_id"] or "", v["run_id"] or ""]
        for v in found
    ]
    out(table("version", "created", "bytes", "commit", "run", rows=rows))
