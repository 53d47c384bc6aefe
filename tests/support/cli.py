"""Commands of the command line as real processes, and how they ended."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenxgraph_temporal import END, CompiledGraph, StateGraph, interrupt
from tenxgraph_temporal.runtime.state import AgentState, Message
from tenxgraph_temporal.runtime.storage.contract import Commit

from .app import App

STORY = "tenxgraph_temporal.tests.support.graphs:story"
LIMIT_SECONDS = 60


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __str__(self) -> str:
        return f"code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def environment(app: App, **changes: str | None) -> dict[str, str]:
    """Ours for this test; ``None`` leaves a variable out."""
    ours: dict[str, str | None] = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "TENXGRAPH_"))},
        "TEMPORAL_ADDRESS": app.stack.temporal_address,
        "TENXGRAPH_DATABASE_URL": app.stack.postgres_dsn,
        "TENXGRAPH_DATABASE_SCHEMA": app.store.schema,
        "TENXGRAPH_TASK_QUEUE": app.queue,
        **changes,
    }
    return {name: value for name, value in ours.items() if value is not None}


async def cli(app: App, *arguments: str, **changes: str | None) -> Ended:
    """Run a command to its end."""
    return await execute(arguments, environment(app, **changes))


async def execute(arguments: tuple[str, ...], env: Mapping[str, str], program: tuple[str, ...] = ()) -> Ended:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(program or ("-m", "tenxgraph_temporal.cli")),
        *arguments,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    ended = Ended(process.returncode, out.decode(), err.decode())
    assert "Traceback" not in ended.err, ended
    return ended


def one_line(ended: Ended) -> str:
    """The only line on stderr."""
    (line,) = ended.err.splitlines()
    return line


async def put_thread(app: App, thread_id: str, user_id: str = "alice", status: str = "completed") -> None:
    fields = {"context": b"[]", "execution_meta": json.dumps({"status": status, "current_node": "a"}).encode()}
    commit = Commit(thread_id=thread_id, user_id=user_id, expected_version=0, fields=fields, origin=None)
    await app.store.commit(commit)


def status_of(ended: Ended, check: str) -> str:
    (found,) = [finding for finding in ended.json["checks"] if finding["check"] == check]
    return str(found["status"])


def asking() -> CompiledGraph:
    """A graph that pauses once."""

    def ask(state: AgentState) -> Message:
        answer = interrupt({"amount": 5}, message="Refund 5 USD?")
        return Message.text_message(f"the answer was {answer}", role="assistant")

    return single("asking", ask)


def single(name: str, node: Any) -> CompiledGraph:
    builder = StateGraph(AgentState, name=name)
    builder.add_node("only", node)
    builder.set_entry_point("only")
    builder.add_edge("only", END)
    return builder.compile()
