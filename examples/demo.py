"""``make demo``: a worker is killed after it charged a card; another one finishes, and the card is charged once.

The same story is told twice on the embedded servers, with the tool ledger and without it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from tenxgraph_temporal import GraphClient, Settings, Store, WirePlugin, open_store, thread_state
from tenxgraph_temporal.runtime.devstack import DevStack, dev_stack
from tenxgraph_temporal.runtime.storage.contract import CallRecord

from ..worker import leave
from .process import outside_world, worker_process

GRAPH = "tenxgraph_temporal.examples.support_agent:graph"
TOOLS = ("lookup_order", "charge_card", "send_receipt")
console = Console(highlight=False)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at an activity that Temporal completed, or gave to a worker that died with it."""

    activity: str
    attempt: int
    worker: str
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Story:
    """What came of one run."""

    thread_id: str
    effects: Counter[str]
    attempts: list[Attempt]
    calls: list[CallRecord]
    answer: str
    killed: str
    finished: str


async def tell(stack: DevStack, client: Client, store: Store, *, ledger: bool) -> Story:
    """Start the run, kill its worker after the charge, let a second worker finish it."""
    name = "ledger" if ledger else "no-ledger"
    async with outside_world() as world:
        env = {
            "TEMPORAL_ADDRESS": stack.temporal_address,
            "TENXGRAPH_DATABASE_URL": stack.postgres_dsn,
            "TENXGRAPH_TASK_QUEUE": f"demo-{name}",
            "TENXGRAPH_LEDGER": str(ledger).lower(),
            "OUTSIDE_WORLD": world,
        }
        fault = {"TENXGRAPH_FAULTS": "tool.recorded/charge_card=hang"}
        thread_id = f"order-4821-{name}"
        async with worker_process(GRAPH, env={**env, **fault}) as first:
            graphs = GraphClient(client, task_queue=f"demo-{name}")
            question = "Please charge my saved card for order 4821 and email me the receipt."
            run = await graphs.start("support", thread_id, question)
            await first.until("fault point tool.recorded/charge_card")
            await _siblings_done(world, store, thread_id, ledger=ledger)
            killed = first.pid
            await first.kill()
            say(name, f"the card was charged, then worker {killed} was killed (SIGKILL) before the step ended")
        async with worker_process(GRAPH, env=env) as second:
            say(name, f"worker {second.pid} takes over; Temporal notices the loss by the missing heartbeats (10 s)")
            await run.result()
            finished = second.pid
        effects = Counter(entry["action"] for entry in await asyncio.to_thread(_world_log, world))
    return Story(
        thread_id=thread_id,
        effects=effects,
        attempts=[attempt async for attempt in _attempts(run.workflow)],
        calls=await store.calls(thread_id) if ledger else [],
        answer=(await thread_state(store, thread_id)).context[-1].text(),
        killed=str(killed),
        finished=str(finished),
    )


async def _siblings_done(world: str, store: Store, thread_id: str, *, ledger: bool) -> None:
    """Wait until the other tools are through, so that the kill falls on the charge alone."""
    async with asyncio.timeout(60):
        while len(await asyncio.to_thread(_world_log, world)) < len(TOOLS) or (
            ledger and len(await store.calls(thread_id)) < len(TOOLS)
        ):
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)  # their results are on the way to Temporal


def _world_log(world: str) -> Any:
    with urllib.request.urlopen(f"{world}/log", timeout=10) as answer:
        return json.load(answer)


async def _attempts(handle: WorkflowHandle[Any, Any]) -> Any:
    scheduled: dict[int, str] = {}
    started: dict[int, tuple[int, str]] = {}
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            start = event.activity_task_started_event_attributes
            if scheduled[start.scheduled_event_id].startswith("tool:"):
                started[start.scheduled_event_id] = (start.attempt, start.identity)
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            done = event.activity_task_completed_event_attributes
            if done.scheduled_event_id in started:
                attempt, worker = started[done.scheduled_event_id]
                outcome = json.loads(done.result.payloads[0].data)
                yield Attempt(
                    activity=scheduled[done.scheduled_event_id],
                    attempt=attempt,
                    worker=worker.partition("@")[0],
                    outcome=outcome["status"],
                )


def say(story: str, text: str) -> None:
    """One line of the story as it happens."""
    console.print(f"  [dim]{time.strftime('%H:%M:%S')}[/]  [bold]{story:<10}[/] {text}")


def show(with_ledger: Story, without: Story, ui: str) -> None:
    """Print what happened."""
    table = Table(title="What the outside world saw", title_justify="left")
    for column in ("tool", "with the ledger", "without it"):
        table.add_column(column)
    for tool in TOOLS:
        count = without.effects[tool]
        shown = f"[bold red]{count} times[/]" if count > 1 else f"{count} time"
        table.add_row(tool, f"[green]{with_ledger.effects[tool]} time[/]", shown)
    console.print(table)

    table = Table(title="Who ran what (with the ledger)", title_justify="left")
    for column in ("call", "attempt", "worker", "outcome"):
        table.add_column(column)
    for attempt in with_ledger.attempts:
        worker = f"{attempt.worker} ({'killed later' if attempt.worker == with_ledger.killed else 'the second'})"
        outcome = attempt.outcome
        if outcome == "replayed":
            outcome = f"[bold green]replayed from the ledger[/] (attempt 1 died with {with_ledger.killed})"
        table.add_row(attempt.activity, str(attempt.attempt), worker, outcome)
    console.print(table)

    table = Table(title="The ledger: tool_executions in Postgres", title_justify="left")
    for column in ("message_id:tool_call_id", "tool", "status", "replays"):
        table.add_column(column, overflow="fold")
    for call in with_ledger.calls:
        table.add_row(call.ledger_key, call.tool, call.status, str(call.replays))
    console.print(table)

    console.print(f"\nThe final answer: [italic]{with_ledger.answer}[/]")
    console.print("The runs in Temporal's UI:")
    for story in (with_ledger, without):
        console.print(f"  {ui}/namespaces/default/workflows/thread-{story.thread_id}", soft_wrap=True)


async def demo(*, keep: bool) -> int:
    """Run both stories; 0 if the ledger did what it promises."""
    console.print("[bold]Starting Temporal, Postgres and Valkey ...[/]")
    directory = Path(".dev") if keep else None
    async with dev_stack(directory) as stack:
        settings = Settings.model_validate({"database_url": stack.postgres_dsn})
        store = await open_store(settings)
        try:
            await store.setup()
            client = await Client.connect(stack.temporal_address, plugins=[WirePlugin()])
            stories = (tell(stack, client, store, ledger=True), tell(stack, client, store, ledger=False))
            with_ledger, without = await asyncio.gather(*stories)
        finally:
            await store.close()
        console.print()
        show(with_ledger, without, stack.ui_url)
        right = all(with_ledger.effects[tool] == 1 for tool in TOOLS) and without.effects["charge_card"] == 2
        if right:
            console.print("\n[bold green]With the ledger the card was charged once.[/]")
        else:
            console.print("\n[bold red]This is not what should have happened.[/]")
        if keep:
            console.print(f"\nThe servers stay up: UI {stack.ui_url}, Postgres {stack.postgres_dsn}. Ctrl-C ends them.")
            await asyncio.Event().wait()
        else:
            console.print("[dim](make demo KEEP=1 leaves the servers up to look around.)[/]")
    return 0 if right else 1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the servers up until Ctrl-C")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    try:
        return asyncio.run(demo(keep=options.keep))
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    leave(main())
