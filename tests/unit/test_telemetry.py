"""What the environment asks for, what is missing for it, and what telemetry does when nobody asked."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import INVALID_SPAN
from temporalio.api.common.v1 import Payload

from tenxgraph_temporal.runtime.errors import SettingsError
from tenxgraph_temporal.runtime.telemetry.exporters import build_meter_provider, wanted_exporters
from tenxgraph_temporal.runtime.telemetry.logs import JsonFormatter, LogFields, TextFormatter, log_fields
from tenxgraph_temporal.runtime.telemetry.tracing import HEADER, Tracing, child_span, context_in, with_context


@pytest.mark.parametrize(
    ("environ", "traces", "metrics"),
    [
        ({}, [], []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ["otlp"], ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, ["otlp"], []),
        ({"OTEL_TRACES_EXPORTER": "otlp, console", "OTEL_METRICS_EXPORTER": "none"}, ["otlp", "console"], []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_METRICS_EXPORTER": "prometheus"}, ["otlp"], ["prometheus"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "TRUE"}, [], []),
    ],
)
def test_exporters_by_the_standard_variables(environ: dict[str, str], traces: list[str], metrics: list[str]) -> None:
    assert wanted_exporters("traces", environ) == traces
    assert wanted_exporters("metrics", environ) == metrics


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A program in a fresh interpreter that finds this package."""
    root = Path(__file__).parents[2] / ".import-root"
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": path, **environ}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("hidden", "environ", "extra"),
    [
        ("opentelemetry.exporter.prometheus", {"TENXGRAPH_METRICS_PORT": "9464"}, "prometheus"),
        ("opentelemetry.exporter.otlp", {"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ("opentelemetry.exporter.otlp", {"OTEL_METRICS_EXPORTER": "otlp"}, "otlp"),
    ],
)
def test_a_missing_extra_is_named(hidden: str, environ: dict[str, str], extra: str) -> None:
    """With the package hidden from a fresh interpreter, as if it were not installed."""
    code = f"""
import asyncio, sys
sys.modules[{hidden!r}] = None
from tenxgraph_temporal import Settings, TenxGraphError
from tenxgraph_temporal.runtime.telemetry.process import process_telemetry
async def main():
    async with process_telemetry(Settings.from_env()):
        pass
try:
    asyncio.run(main())
except TenxGraphError as exc:
    print(exc)
"""
    done = python(code, **environ)
    assert done.stdout.startswith("[SETTINGS_001] "), done.stderr
    assert f"pip install 'tenxgraph-temporal[{extra}]'" in done.stdout


def test_providers_of_the_process_are_used() -> None:
    """As ``opentelemetry-instrument`` leaves them."""
    code = """
import asyncio
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from tenxgraph_temporal import Settings
from tenxgraph_temporal.runtime.telemetry.process import process_telemetry
theirs = TracerProvider(), MeterProvider()
trace.set_tracer_provider(theirs[0])
metrics.set_meter_provider(theirs[1])
async def main():
    async with process_telemetry(Settings.from_env()) as telemetry:
        assert telemetry.tracing.tracer is theirs[0].get_tracer("tenxgraph_temporal")
    assert (trace.get_tracer_provider(), metrics.get_meter_provider()) == theirs
asyncio.run(main())
print("theirs")
"""
    done = python(code, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert done.stdout == "theirs\n", done.stderr


async def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port {port} for Prometheus cannot be listened on"):
            build_meter_provider(prometheus_port=port)


def test_no_provider_no_tracing() -> None:
    assert Tracing.of(None) is None
    with child_span("anything") as span:
        assert span is INVALID_SPAN


def test_the_tracers_of_others_keep_their_ids() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    before = provider.id_generator
    assert Tracing.of(provider) is not None
    assert Tracing.of(provider) is not None
    assert provider.id_generator is before
    assert provider.get_tracer("somebody else's").id_generator is before  # type: ignore[attr-defined]


def test_no_span_no_header() -> None:
    assert with_context({}) == {}


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"traceparent": 5}', b'{"traceparent": "00-zz"}'])
def test_a_header_that_cannot_be_read_is_no_context(data: bytes) -> None:
    assert not context_in({HEADER: Payload(metadata={"encoding": b"json/plain"}, data=data)})


def formatted(formatter: logging.Formatter, **extra: object) -> str:
    record = logging.makeLogRecord({"name": "n", "levelname": "INFO", "msg": "%s here", "args": ("I am",), **extra})
    assert LogFields().filter(record)
    return formatter.format(record)


def test_fields_nest_and_end() -> None:
    with log_fields(thread_id="t", node="a"):
        with log_fields(node="b", tool=""):
            assert formatted(TextFormatter()).endswith("INFO n I am here [thread_id=t node=b]")
        assert formatted(TextFormatter()).endswith("[thread_id=t node=a]")
    assert formatted(TextFormatter()).endswith("INFO n I am here")


async def test_fields_of_concurrent_work_do_not_mix() -> None:
    async def work(name: str) -> list[str]:
        with log_fields(node=name):
            await asyncio.sleep(0)
            inside = await asyncio.to_thread(formatted, TextFormatter())
            return [formatted(TextFormatter()), inside]

    for name, lines in zip("abc", await asyncio.gather(*map(work, "abc")), strict=True):
        assert all(line.endswith(f"[node={name}]") for line in lines), lines


def test_a_json_line_holds_extras_and_the_traceback() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        line = json.loads(formatted(JsonFormatter(), exc_info=sys.exc_info(), mood=object))
    assert line["message"] == "I am here"
    assert "ValueError: why" in line["exception"]
    assert "object" in line["mood"]
    assert "thread_id" not in line


def test_the_sdks_lines_about_an_attempt_say_whose_it_was() -> None:
    about = {"workflow_id": "thread-t1", "workflow_run_id": "r", "activity_type": "tool:charge", "attempt": 2}
    line = json.loads(formatted(JsonFormatter(), temporal_activity=about))
    assert (line["thread_id"], line["run_id"], line["tool"], line["attempt"]) == ("t1", "r", "charge", 2)
    assert "node" not in line


@pytest.mark.parametrize("field", ["thread_id", "run_id", "node", "tool", "message_id", "tool_call_id", "attempt"])
def test_every_field_can_be_part_of_a_format(field: str) -> None:
    assert formatted(logging.Formatter(f"<%({field})s>")) == "<>"
