"""Commands about runs: run, stop, resume."""

from __future__ import annotations

import asyncio
import time
import uuid
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from .cli_output import (
    RUN_FAILED,
    RUN_STOPPED,
    AsJson,
    AsUser,
    CommandError,
    note,
    opened_store,
    out,
    out_json,
    parse_json,
    parse_object,
    run_async,
    shorten,
)
from .runtime.client import GraphClient, RunFailed, RunHandle, RunStopped
from .runtime.connect import connect
from .runtime.doctor import poller_count
from .runtime.progress import StepEvent, follow, pending_steps
from .runtime.settings import Settings
from .runtime.state import Message
from .runtime.state.encoding import load_json
from .runtime.wire import workflow_id_of

_SIGNS = {
    "scheduled": ("…", "dim"),
    "completed": ("✓", "green"),
    "replayed": ("↺", "bold green"),
    "paused": ("‖", "yellow"),
    "failed": ("✗", "red"),
    "timed out": ("✗", "red"),
    "cancelled": ("✗", "yellow"),
}
_LOOK_SECONDS = 1.0

Thread = Annotated[str, typer.Argument(help="The thread's id.")]


class Output(StrEnum):
    """How a command prints."""

    text = "text"
    json = "json"


def run(
    graph: Annotated[str, typer.Argument(help="The graph's name, as its worker shows it.")],
    message: Annotated[str | None, typer.Argument(help="What the user says.")] = None,
    thread: Annotated[str | None, typer.Option(help="Go on with this thread; a new one by default.")] = None,
    user: Annotated[str, typer.Option(help="Whose thread it is.")] = "anonymous",
    config: Annotated[str | None, typer.Option(help="The run's config, a JSON object.")] = None,
    state: Annotated[str | None, typer.Option(help="State fields to set, a JSON object.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start it and return.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a run, show its progress on stderr, and print its answer.

    Exits with 3 if the run failed, with 4 if it was stopped. Ctrl-C leaves the run going.

    Example: tenxgraph-temporal run support "Where is order 4821?" --config '{"recursion_limit": 10}'
    """
    options = {"config": parse_object(config, "--config"), "state": parse_object(state, "--state"), "user_id": user}
    thread_id = thread or str(uuid.uuid4())
    raise typer.Exit(run_async(_run(graph, message, thread_id, options, detach=detach, as_json=as_json)))


async def _run(
    graph: str, message: str | None, thread_id: str, options: dict[str, Any], *, detach: bool, as_json: bool
) -> int:
    settings = Settings.from_env()
    client = await connect(settings)
    handle = await GraphClient(client, task_queue=settings.task_queue).start(graph, thread_id, message, **options)
    document: dict[str, Any] = {
        "thread_id": thread_id,
        "workflow_id": handle.workflow.id,
        "run_id": handle.workflow.result_run_id,
        "status": "started",
    }
    if detach:
        if as_json:
            out_json(document)
        else:
            note(f"started on task queue {settings.task_queue}; follow it with: tenxgraph-temporal show {thread_id}")
            out(thread_id)
        return 0
    note(f"thread {thread_id} (workflow {handle.workflow.id})")
    code = 0
    try:
        try:
            await _show_progress(client, handle, settings.task_queue)
            result = await handle.result()
        except RunFailed as exc:
            code, document = RUN_FAILED, {**document, "status": "failed", "code": exc.code, "error": str(exc.args[0])}
        except RunStopped:
            code, document = RUN_STOPPED, {**document, "status": "stopped"}
        else:
            document |= {"status": "completed", "version": result.version, "step": result.step}
            document["answer"] = await _answer(settings, thread_id)
    except asyncio.CancelledError:
        note(f"left going; stop it with: tenxgraph-temporal stop {thread_id}")
        raise
    if as_json:
        out_json(document)
    elif code == 0:
        out(document["answer"])
    if code == RUN_FAILED:
        note(f"the run failed: [{document['code']}] {document['error']}")
    elif code == RUN_STOPPED:
        note(f"the run was stopped; thread {thread_id} can go on with a next run")
    return code


async def _answer(settings: Settings, thread_id: str) -> str | None:
    """The last words of the assistant."""
    async with opened_store(settings) as store:
        head = await store.load_head(thread_id, None)
    if head is None or head.fields is None:
        return None
    for raw in reversed(load_json(head.fields.get("context", b"[]"))):
        if raw.get("role") == "assistant":
            return Message.model_validate(raw).text()
    return None


async def _show_progress(client: Client, handle: RunHandle, task_queue: str) -> None:
    """Print what happens until the run is closed."""
    watch = _Watch(client, handle, task_queue)
    looking = asyncio.create_task(watch.look())
    try:
        async for event in follow(client, handle.workflow.id, handle.workflow.result_run_id):
            watch.busy()
            _show(event)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def _show(event: StepEvent) -> None:
    sign, style = _SIGNS[event.what]
    text = Text.assemble((f"  {sign} ", style), f"{event.activity} {event.what}")
    if event.what != "scheduled":
        text.append(f" (attempt {event.attempt}, {event.worker or 'no worker'})", style="dim")
    if event.detail:
        text.append(f": {shorten(event.detail, 200)}")
    note(text)


class _Watch:
    """Sees what is not in the history: attempts that are retried, open questions, missing workers."""

    def __init__(self, client: Client, handle: RunHandle, task_queue: str) -> None:
        self._client = client
        self._handle = handle
        self._task_queue = task_queue
        self._shown: set[tuple[str, ...]] = set()
        self._last_event = time.monotonic()

    def busy(self) -> None:
        """Something happened just now."""
        self._last_event = time.monotonic()

    async def look(self) -> None:
        """Look about once a second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._look_once()
            except (RPCError, RuntimeError):  # only news; the run itself is followed elsewhere
                continue

    async def _look_once(self) -> None:
        pending = await pending_steps(self._client, self._handle.workflow.id)
        for step in pending:
            if step.attempt > 1:
                news = f"  ! {step.activity} attempt {step.attempt}: {shorten(step.failure, 200) or 'tried again'}"
                self._once(news, step.activity, step.activity_id, str(step.attempt))
        if time.monotonic() - self._last_event < _LOOK_SECONDS:
            return
        if await poller_count(self._client, self._task_queue) == 0:
            self._once(f"  ! no worker polls task queue {self._task_queue}; the run waits for one", "worker")
            return
        if not pending:
            for ref in await self._handle.interrupts():
                self._once(
                    f"  ‖ waits for an answer: {ref.key}\n    tenxgraph-temporal resume {self._handle.thread_id} "
                    f"--id {ref.interrupt_id} --value JSON",
                    ref.interrupt_id,
                )

    def _once(self, news: str, *about: str) -> None:
        if about not in self._shown:
            self._shown.add(about)
            note(news)


def stop(
    thread: Thread,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the run has ended.")] = False,
    user: AsUser = None,
    as_json: AsJson = False,
) -> None:
    """Stop the open run of a thread: a Temporal cancellation. The thread can go on with a next run.

    Example: tenxgraph-temporal stop order-4821 --wait
    """
    run_async(_stop(thread, user, wait=wait, as_json=as_json))


async def _stop(thread_id: str, user_id: str | None, *, wait: bool, as_json: bool) -> None:
    client = await connect()
    handle = GraphClient(client).handle(thread_id, user_id=user_id)
    if not await run_is_open(client, thread_id):  # the server accepts a second cancel of a run that was stopped
        raise CommandError(f"no run of thread {thread_id!r} is open (workflow {handle.workflow.id})")
    await handle.stop()
    status = "stop requested"
    if wait:
        status = "stopped"
        try:
            await handle.result()
        except RunStopped:
            pass
        except RunFailed as exc:
            status = f"failed: {exc.args[0]}"
        else:
            status = "completed"
    if as_json:
        out_json({"thread_id": thread_id, "status": status.partition(":")[0]})
    else:
        out(f"thread {thread_id}: {status}")


def resume(
    thread: Thread,
    value: Annotated[str, typer.Option("--value", "--json", help="The answer, as JSON.")],
    interrupt_id: Annotated[str | None, typer.Option("--id", help="Which question; not needed if one is open.")] = None,
    checked: Annotated[
        bool, typer.Option("--checked", help="Wait for a worker to accept or refuse the answer.")
    ] = False,
    user: AsUser = None,
    output: Annotated[Output, typer.Option(help="How to print what was done.")] = Output.text,
) -> None:
    """Answer a question of a paused run: the signal `resume`.

    A signal is kept even if no worker is up, and nobody says if it fits no question; --checked does.

    Example: tenxgraph-temporal resume order-4821 --value '{"decision": "approve"}'
    """
    answer = parse_json(value, "--value")
    accepted = run_async(_resume(thread, user, answer, interrupt_id, checked=checked))
    status = "answered" if checked else "sent"
    if output is Output.json:
        out_json({"thread_id": thread, "interrupt_id": accepted, "status": status})
    else:
        out(f"thread {thread}: answer {'accepted by ' + str(accepted) if checked else 'sent'}")


async def _resume(
    thread_id: str, user_id: str | None, value: Any, interrupt_id: str | None, *, checked: bool
) -> str | None:
    handle = GraphClient(await connect()).handle(thread_id, user_id=user_id)
    if checked:
        return await handle.answer(value, interrupt_id=interrupt_id)
    await handle.signal(value, interrupt_id=interrupt_id)
    return interrupt_id


async def run_is_open(client: Client, thread_id: str) -> bool:
    """Whether a run of the thread is open.

    Raises:
        CommandError: Temporal does not say.
    """
    try:
        description = await client.get_workflow_handle(workflow_id_of(thread_id)).describe()
    except RPCError as exc:
        if exc.status == RPCStatusCode.NOT_FOUND:
            return False
        raise CommandError(f"Temporal refused: {exc.message or exc.status.name}") from exc
    return description.close_time is None
