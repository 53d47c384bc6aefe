"""Tools that a person approves, and tools that the client carries out."""

from __future__ import annotations

from typing import Any

import pytest

from tenxgraph_temporal import tool

from ..support.app import App
from ..support.graphs import agent, call, results
from ..support.pausing import paused

pytestmark = pytest.mark.usefixtures("execution", "keeps_workflows")


@pytest.mark.parametrize(
    ("answer", "expected", "ran_with"),
    [
        ({"approved": True, "by": "ada"}, "deleted /a", ["/a"]),
        ({"approved": True, "arguments": {"path": "/b"}}, "deleted /b", ["/b"]),
        ({"approved": False, "reason": "too risky"}, "rejected the call: too risky", []),
        (None, "rejected the call", []),
    ],
)
async def test_approval_without_code(app: App, answer: Any, expected: str, ran_with: list[str]) -> None:
    ran: list[str] = []

    @tool(requires_approval=lambda arguments: arguments["path"] != "/tmp")
    def delete(path: str) -> str:
        ran.append(path)
        return f"deleted {path}"

    graph = agent([delete], [call("delete", "1", path="/a"), call("delete", "2", path="/tmp")])
    async with paused(app, graph) as (thread_id, run):
        meta = (await app.state(thread_id)).execution_meta
        assert meta.interrupt_data is not None
        assert meta.interrupt_data["interrupt"]["value"] == {
            "tool": "delete",
            "arguments": {"path": "/a"},
            "tool_call_id": "1",
        }
        await run.answer(answer)
        await run.result()
    assert sorted(ran) == sorted([*ran_with, "/tmp"])
    state = await app.state(thread_id)
    assert expected in results(state)[0]
    record = next(c for c in await app.store.calls(thread_id) if c.ledger_key.endswith(":1"))
    assert record.envelope is not None
    audit = record.envelope["value"]["metadata"]["approval"]
    assert audit["approved"] is bool(ran_with)
    assert audit["by"] == (answer or {}).get("by", "")


async def test_a_remote_tool_is_carried_out_by_the_client(app: App) -> None:
    @tool(remote=True)
    def pick_file(title: str) -> str:
        """Let the user pick a file."""
        raise AssertionError("runs on the client")

    async with paused(app, agent([pick_file], [call("pick_file", "1", title="CV")])) as (thread_id, run):
        meta = (await app.state(thread_id)).execution_meta
        assert meta.interrupt_data is not None
        assert meta.interrupt_data["interrupt"]["reason"] == "remote_tool_call"
        assert meta.interrupt_data["interrupt"]["value"]["arguments"] == {"title": "CV"}
        await run.answer({"file": "cv.pdf"})
        await run.result()
    assert results(await app.state(thread_id)) == ['{"file":"cv.pdf"}']
