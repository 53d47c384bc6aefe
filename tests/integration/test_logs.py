"""Every line that a worker logs while code runs for a run says for which one."""

from __future__ import annotations

import json
from typing import Any

from ..support.app import App
from ..support.collector import otlp_collector

TALKATIVE = "tenxgraph_temporal.tests.support.telemetry_graphs:talkative"
CHATTY = "tenxgraph_temporal.tests.support.telemetry_graphs:chatty"


def lines(output: str) -> list[dict[str, Any]]:
    """The JSON lines; anything else on stderr would not be one."""
    others = [line for line in output.splitlines() if not line.startswith("{")]
    assert len(others) == 1, others
    assert others[0].startswith("worker ready")
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


async def test_json_lines_name_their_call(app: App) -> None:
    thread_id = app.thread()
    async with app.process(TALKATIVE, TENXGRAPH_LOG_FORMAT="json") as worker:
        run = await app.start("talkative", thread_id)
        await run.result()
        assert await worker.terminate() == 0
    logged = {line["message"]: line for line in lines(worker.output)}
    message_id = (await app.state(thread_id)).context[1].message_id
    about = {
        "thread_id": thread_id,
        "run_id": run.workflow.first_execution_run_id,
        "node": "tools",
        "message_id": message_id,
        "attempt": 1,
    }
    for message, tool, call_id in (
        ("async tool at work", "talk", "call_1"),
        ("in a thread of the async tool", "talk", "call_1"),
        ("sync tool at work in tool 'shout'", "shout", "call_2"),
    ):
        line = logged[message]
        assert about.items() <= line.items(), line
        assert (line["tool"], line["tool_call_id"]) == (tool, call_id), line
        assert line["level"] == "INFO"
        assert line["logger"] == "somebody.elses"
        assert "trace_id" not in line
    assert logged["async tool at work"]["mood"] == "good"
    (ours,) = [line for line in logged.values() if "Tool 'fail' failed" in line["message"]]
    assert about.items() <= ours.items(), ours
    assert ours["tool_call_id"] == "call_3"
    (outside,) = [line for line in logged.values() if line["message"].startswith("serving talkative")]
    assert not about.keys() & outside.keys()


async def test_calls_of_a_batch_are_told_apart_and_lines_lead_to_spans(app: App) -> None:
    async with otlp_collector() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "TENXGRAPH_LOG_FORMAT": "json"}
        async with app.process(CHATTY, **env) as worker:
            await (await app.start("chatty", app.thread())).result()
            assert await worker.terminate() == 0
    logged = {line["message"]: line for line in lines(worker.output)}
    for message, tool in (("async tool at work", "talk"), ("sync tool at work in tool 'shout'", "shout")):
        span = collector.one(f"execute_tool {tool}")
        assert logged[message]["tool"] == tool
        assert (logged[message]["trace_id"], logged[message]["span_id"]) == (span.trace_id, span.span_id)


async def test_text_lines_have_the_fields_behind_the_message(app: App) -> None:
    thread_id = app.thread()
    async with app.process(TALKATIVE, TENXGRAPH_LOG_LEVEL="WARNING") as worker:
        await (await app.start("talkative", thread_id)).result()
        assert await worker.terminate() == 0
    assert "at work" not in worker.output
    (line,) = [line for line in worker.output.splitlines() if "Tool 'fail' failed" in line]
    assert f"[thread_id={thread_id} run_id=" in line
    assert "node=tools tool=fail message_id=" in line
    assert line.endswith("tool_call_id=call_3 attempt=1]")


async def test_an_ignored_answer_says_whose_it_was(app: App) -> None:
    """The workflow's own lines, too."""
    thread_id = app.thread()
    async with app.process(TALKATIVE, TENXGRAPH_LOG_FORMAT="json") as worker:
        run = await app.start("talkative", thread_id)
        await run.workflow.signal("resume", "nonsense")
        await worker.until("an answer was ignored")
        await run.result()
    line = json.loads(next(line for line in worker.output.splitlines() if "an answer was ignored" in line))
    assert (line["thread_id"], line["run_id"]) == (thread_id, run.workflow.first_execution_run_id)
