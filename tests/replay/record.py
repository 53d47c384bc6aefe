"""Records the histories in ``histories/``: ``python -m tenxgraph_temporal.tests.replay.record``.

Once recorded, a history stays: it stands for the runs that are open when a newer version is deployed. Only what has no
file yet is recorded: add a run, under a new name, when the run loop learns a new shape.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import uuid
from pathlib import Path
from typing import Any

from temporalio.client import Client

from tenxgraph_temporal import AgentState, CompiledGraph, OnTimeout, RunHandle, WirePlugin, interrupt
from tenxgraph_temporal.runtime.devstack import dev_stack
from tenxgraph_temporal.runtime.errors import TenxGraphError
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore

from ..support.app import App, eventually
from ..support.graphs import agent, call

FOLDER = Path(__file__).parent / "histories"


def add(a: int, b: int) -> int:
    return a + b


def ask() -> str:
    return str(interrupt("?"))


def ask_in_vain() -> str:
    return str(interrupt("?", timeout=0.3, on_timeout="nobody"))


def ask_or_fail() -> str:
    return str(interrupt("?", timeout=0.3, on_timeout=OnTimeout.FAIL))


async def hang() -> str:
    await asyncio.sleep(60)
    return "late"


def broken(state: AgentState) -> None:
    raise RuntimeError("broken")


def scrubbed(value: Any) -> Any:
    """Without what names the machine and does not matter to a replay."""
    if isinstance(value, dict):
        return {key: scrubbed(item) for key, item in value.items() if key not in ("stackTrace", "identity")}
    return [scrubbed(item) for item in value] if isinstance(value, list) else value


async def _waits(run: RunHandle, count: int) -> bool:
    return len(await run.interrupts()) == count


async def record(app: App, name: str, graph: CompiledGraph, act: Any = None, **options: Any) -> None:
    """Run ``graph``, do ``act`` to the run, keep its history, unless one of that name is kept already."""
    if (FOLDER / f"{name}.json").exists():
        return
    async with app.worker(graph):
        run = await app.start("agent", app.thread(), **options)
        if act is not None:
            await act(run)
        try:
            await run.result()
        except TenxGraphError as exc:
            print(f"{name}: {exc}")
    history = scrubbed(json.loads((await run.workflow.fetch_history()).to_json()))
    (FOLDER / f"{name}.json").write_text(json.dumps(history, indent=1) + "\n")
    if name == "tools":  # a history that this code could not have made: the answer before the question
        for event in history["events"]:
            details = event.get("activityTaskScheduledEventAttributes")
            if details and details["activityType"]["name"] == "node:model":
                details["activityType"]["name"] = "tool:add"
        (FOLDER / "broken-order.json").write_text(json.dumps(history, indent=1) + "\n")


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    async with dev_stack(redis=False) as stack:
        store = await PostgresStore.open(stack.postgres_dsn, schema=f"t_{uuid.uuid4().hex}")
        await store.setup()
        client = await Client.connect(stack.temporal_address, plugins=[WirePlugin()])
        with tempfile.TemporaryDirectory() as logs:
            app = App(stack=stack, client=client, store=store, logs=Path(logs))
            two = [call("add", "1", a=1, b=2), call("add", "2", a=3, b=4)]

            async def answer(run: RunHandle) -> None:
                await eventually(lambda: _waits(run, 2))
                first, second = await run.interrupts()
                await run.workflow.signal("resume", "nonsense")
                await run.workflow.signal("resume", {"interrupt_id": second.interrupt_id, "value": 2})
                await run.answer(1, interrupt_id=first.interrupt_id)

            async def stop(run: RunHandle) -> None:
                async def started() -> bool:
                    return bool((await run.workflow.describe()).raw_description.pending_activities)

                await eventually(started)
                await run.stop()

            await record(app, "tools", agent([add], two, two))
            await record(app, "unknown-tool", agent([add], [call("nothing", "1"), call("add", "2", a=1, b=1)]))
            await record(app, "interrupt", agent([ask], [call("ask", "1"), call("ask", "2")]), answer)
            await record(app, "interrupt-expired", agent([ask_in_vain], [call("ask_in_vain", "1")]))
            await record(app, "interrupt-failed", agent([ask_or_fail], [call("ask_or_fail", "1")]))
            await record(app, "stopped", agent([hang], [call("hang", "1")]), stop)
            for execution in ("batch", "local"):
                await record(app, f"tools-{execution}", agent([add], two, two, execution=execution))
            await record(app, "recursion", agent([add], two, two), config={"recursion_limit": 2})
            await record(app, "refused", agent([add]), messages=None)
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
