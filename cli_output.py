"""What commands share: printing, parsing of options, and connections."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from temporalio.service import RPCError

from .runtime import event_loop
from .runtime.errors import SettingsError, TenxGraphError
from .runtime.settings import Settings
from .runtime.storage import Store, open_store
from .runtime.storage.redis_cache import RedisCache
from .runtime.telemetry import Metrics

T = TypeVar("T")

RUN_FAILED = 3
RUN_STOPPED = 4
INTERRUPTED = 130

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
AsUser = Annotated[str | None, typer.Option("--user", help="Act as this user; without it, as operator.")]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PIPE_WIDTH = 200
_DURATION = re.compile(r"^(\d+)\s*(s|m|h|d|w)$")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class CommandError(TenxGraphError):
    """A command could not do what it was asked for."""

    code = "CLI_001"


def clean(text: str) -> str:
    """``text`` without control characters: a model's words must not drive the terminal."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def shorten(text: str, length: int = 100) -> str:
    """``text`` on one line, cut to ``length``."""
    line = " ".join(clean(text).split())
    return line if len(line) <= length else line[: length - 1] + "…"


def out(text: str | Text | Table = "") -> None:
    """Print to stdout, as data."""
    _console(stderr=False).print(clean(text) if isinstance(text, str) else text, soft_wrap=not isinstance(text, Table))


def note(text: str | Text) -> None:
    """Print to stderr, as news about the work."""
    _console(stderr=True).print(clean(text) if isinstance(text, str) else text, soft_wrap=True)


def out_json(value: Any) -> None:
    """Print one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=_plain) + "\n")
    sys.stdout.flush()


def table(*columns: str, rows: list[list[str]]) -> Table:
    """A borderless table."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(clean(cell)) for cell in row))
    return made


def when(at: datetime) -> str:
    """A time for people, in their zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=width)


def parse_json(text: str | None, option: str) -> Any:
    """The JSON that an option holds.

    Raises:
        typer.BadParameter: It is none.
    """
    try:
        return None if text is None else json.loads(text)
    except ValueError as exc:
        raise typer.BadParameter(f"{option} is not JSON ({exc}); a text needs quotes: '\"yes\"'") from None


def parse_object(text: str | None, option: str) -> dict[str, Any] | None:
    """As ``parse_json``, for an option that takes an object."""
    value = parse_json(text, option)
    if value is not None and not isinstance(value, dict):
        raise typer.BadParameter(f"{option} takes a JSON object, such as '{{\"recursion_limit\": 10}}'")
    return value


def parse_time(text: str | None, option: str) -> datetime | None:
    """An ISO 8601 time; without a zone, UTC.

    Raises:
        typer.BadParameter: It is none.
    """
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{option} takes an ISO 8601 time, such as 2026-01-31T12:00:00Z") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def parse_duration(text: str, option: str) -> timedelta:
    """``30d``, ``12h``, ``90m``, ``45s``, ``2w``.

    Raises:
        typer.BadParameter: It is none.
    """
    found = _DURATION.match(text.strip().lower())
    try:
        if found:
            return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        pass
    raise typer.BadParameter(f"{option} takes a number with s, m, h, d or w, such as 30d")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work; Temporal's refusals become errors of ours."""
    try:
        return event_loop.run(work)
    except RPCError as exc:
        raise CommandError(f"Temporal refused: {exc.message or exc.status.name}") from exc
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@asynccontextmanager
async def opened_cache() -> AsyncIterator[RedisCache | None]:
    """The cache that the environment names, if any."""
    url = Settings.from_env().redis_url.get_secret_value()
    cache = RedisCache.open(url, metrics=Metrics()) if url else None
    try:
        yield cache
    finally:
        if cache is not None:
            await cache.close()


@asynccontextmanager
async def opened_store(settings: Settings | None = None) -> AsyncIterator[Store]:
    """The store that the environment names.

    Raises:
        SettingsError: There is none that a second process could see.
        StoreUnavailable: It cannot be reached.
    """
    settings = settings or Settings.from_env()
    if settings.database_url.get_secret_value().startswith("memory:"):
        raise SettingsError(
            "TENXGRAPH_DATABASE_URL is memory:, which only the worker's own process can see; "
            "use postgresql:// or sqlite://"
        )
    store = await open_store(settings.model_copy(update={"database_pool_size": 2}))
    try:
        yield store
    finally:
        await store.close()
