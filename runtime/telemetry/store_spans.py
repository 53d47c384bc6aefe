"""Spans of the ledger, of the state, and of the database statements below them."""

from __future__ import annotations

import time
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.trace import SpanKind, StatusCode

from ..storage.contract import Store
from .tracing import child_span, current_tracing, error_type

if TYPE_CHECKING:
    import asyncpg

_SPANS = {
    "load_head": "state.load",
    "commit": "state.commit",
    "lookup": "ledger.lookup",
    "record": "ledger.record",
    "load_call": "ledger.load_call",
    "claim": "ledger.claim",
    "take_over": "ledger.take_over",
    "renew": "ledger.renew",
    "release": "ledger.release",
    "count_replay": "ledger.count_replay",
    "put_interrupt": "interrupts.put",
    "load_interrupts": "interrupts.load",
}
_QUERY_CHARS = 2000


class _Spanned:
    """A store whose work within a run makes spans; everything else is passed on untouched."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        span_name = _SPANS.get(name)
        if span_name is None:
            return found

        @wraps(found)
        async def spanned(*args: Any, **kwargs: Any) -> Any:
            with child_span(span_name):
                return await found(*args, **kwargs)

        self.__dict__[name] = spanned  # found without us the next time
        return spanned


def with_spans(store: Store) -> Store:
    """``store``, with a span for each of its operations within a run."""
    return cast(Store, _Spanned(store))


async def watch_statements(connection: asyncpg.Connection) -> None:
    """Make a span of each statement of ``connection`` within a run; the ``init`` of an asyncpg pool.

    The statement is shown as it is written in the code, with placeholders; its values are not. The pool's own
    clean-up of the connection makes no span.
    """
    clean_up = connection.get_reset_query()

    def show(statement: Any) -> None:
        if statement.query != clean_up:
            _show_statement(statement)

    connection.add_query_logger(show)


def _show_statement(statement: Any) -> None:
    # Called back in the context in which the statement was made, after it has ended.
    tracing = current_tracing()
    if tracing is None:
        return
    end = time.time_ns()
    text = statement.query.strip()
    operation = text.split(None, 1)[0].upper().rstrip(";") if text else ""
    host, port = statement.conn_addr if isinstance(statement.conn_addr, tuple) else (statement.conn_addr, None)
    span = tracing.tracer.start_span(
        operation or "postgresql",
        kind=SpanKind.CLIENT,
        start_time=end - int(statement.elapsed * 1e9),
        attributes={
            "db.system.name": "postgresql",
            "db.namespace": str(statement.conn_params.database),
            "db.operation.name": operation,
            "db.query.text": text[:_QUERY_CHARS],
            "server.address": str(host),
            **({"server.port": port} if port else {}),
        },
    )
    if statement.exception is not None:
        state = getattr(statement.exception, "sqlstate", None)
        span.set_attribute("error.type", state or error_type(statement.exception))
        span.set_status(StatusCode.ERROR)
    span.end(end)
