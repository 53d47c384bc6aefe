"""Logs that say which run they belong to: fields on every record while an attempt runs, as text or as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from opentelemetry import trace

from ..wire import thread_id_of

FIELDS = ("thread_id", "run_id", "node", "tool", "message_id", "tool_call_id", "attempt")
"""What a record says about the attempt that wrote it; empty where it does not apply."""
TRACE_FIELDS = ("trace_id", "span_id")

_BOUND: ContextVar[dict[str, str | int]] = ContextVar("tenxgraph_log_fields")
_PLAIN = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime", "taskName"}
_TEMPORAL = "temporal_activity"
"""Where Temporal's SDK puts what it knows of an attempt, on the lines that it writes about one."""


@contextmanager
def log_fields(**fields: str | int) -> Iterator[None]:
    """Put ``fields`` on what is logged inside, on top of those from around it. Empty ones are left out.

    Tasks and ``asyncio.to_thread`` take them along, as does the thread of a sync node or tool.
    """
    token = _BOUND.set({**_BOUND.get({}), **{name: value for name, value in fields.items() if value}})
    try:
        yield
    finally:
        with suppress(ValueError):  # a workflow that is collected is closed in another context
            _BOUND.reset(token)


class LogFields(logging.Filter):
    """Adds ``FIELDS`` and ``TRACE_FIELDS`` to each record. Add it to a handler: ``handler.addFilter(LogFields())``.

    Every record gets every field, so that a format such as ``%(thread_id)s`` never fails.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through, with its fields."""
        known = _BOUND.get(None) or _of_temporal(record)
        for name in FIELDS:
            record.__dict__.setdefault(name, known.get(name, ""))
        context = trace.get_current_span().get_span_context()
        valid = context.is_valid
        record.__dict__.setdefault("trace_id", trace.format_trace_id(context.trace_id) if valid else "")
        record.__dict__.setdefault("span_id", trace.format_span_id(context.span_id) if valid else "")
        return True


def _of_temporal(record: logging.LogRecord) -> dict[str, str | int]:
    """What the SDK's own lines about an attempt say in their own words, such as that it failed."""
    known = record.__dict__.get(_TEMPORAL)
    if not isinstance(known, dict):
        return {}
    kind, _, name = str(known.get("activity_type", "")).partition(":")
    place = {"node": "node", "tools": "node", "tool": "tool"}.get(kind)
    return {
        "thread_id": thread_id_of(str(known.get("workflow_id", ""))),
        "run_id": str(known.get("workflow_run_id", "")),
        "attempt": int(known.get("attempt", 0)),
        **({place: name} if place else {}),
    }


class TextFormatter(logging.Formatter):
    """One line per record, its fields behind the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without the traceback."""
        values = ((name, record.__dict__.get(name)) for name in (*FIELDS, *TRACE_FIELDS))
        known = " ".join(f"{name}={value}" for name, value in values if value)
        line = super().formatMessage(record)
        return f"{line} [{known}]" if known else line


class JsonFormatter(logging.Formatter):
    """One JSON object per record and line: ``time`` (UTC), ``level``, ``logger``, ``message``, the fields that are
    not empty, ``exception``, and whatever was passed as ``extra``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _PLAIN and value != ""}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, default=str, ensure_ascii=False)


def set_up_logging(*, level: str, as_json: bool) -> None:
    """Send what this process logs to stderr, once; where its root logger has handlers already, change nothing."""
    handler = logging.StreamHandler()
    handler.addFilter(LogFields())
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler])
