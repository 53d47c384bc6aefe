"""Commands about servers: dev, worker, setup, doctor, codec-server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from . import worker as worker_module
from .cli_output import AsJson, CommandError, note, opened_store, out, out_json, run_async, table
from .runtime.codec import EncryptionCodec
from .runtime.codec_server import CodecServer
from .runtime.connect import connect
from .runtime.devstack import DevStack, dev_stack
from .runtime.doctor import examine
from .runtime.graph import CompiledGraph
from .runtime.search_attributes import REMEDY, register
from .runtime.settings import Settings
from .runtime.telemetry.logs import set_up_logging

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}
_TEMPORAL_VARIABLES = ("TEMPORAL_API_KEY", "TEMPORAL_TLS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE")


def dev(
    graphs: Annotated[
        list[str] | None, typer.Argument(metavar="[module:graph]...", help="Graphs to serve in this process.")
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", help="Where data and logs are kept.")] = Path(".dev"),
    temporary: Annotated[bool, typer.Option("--temporary", help="Keep nothing.")] = False,
    temporal_port: Annotated[int | None, typer.Option(help="Temporal's port; a free one by default.")] = None,
    ui_port: Annotated[int | None, typer.Option(help="The UI's port; a free one by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start Temporal with its UI, Postgres and Valkey for development, and serve graphs on them.

    Everything listens on 127.0.0.1 and ends with Ctrl-C.

    Example: tenxgraph-temporal dev my_agent:graph
    """
    loaded = [worker_module.load_graph(spec) for spec in graphs or ()]
    run_async(_dev(loaded, None if temporary else directory, temporal_port, ui_port, as_json))


async def _dev(
    graphs: Sequence[CompiledGraph],
    directory: Path | None,
    temporal_port: int | None,
    ui_port: int | None,
    as_json: bool,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    serving = asyncio.create_task(_run_stack(graphs, directory, temporal_port, ui_port, as_json))
    await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not serving.done():
        serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def _run_stack(
    graphs: Sequence[CompiledGraph],
    directory: Path | None,
    temporal_port: int | None,
    ui_port: int | None,
    as_json: bool,
) -> None:
    note("starting Temporal, Postgres and Valkey ...")
    async with dev_stack(directory, temporal_port=temporal_port, ui_port=ui_port) as stack:
        _enter(stack)
        settings = Settings.from_env()
        async with opened_store(settings) as store:
            await store.setup()
        _show_stack(stack, settings, as_json=as_json)
        watching = asyncio.create_task(_first_death(stack))
        work = [watching]
        if graphs:
            set_up_logging(level=settings.log_level, as_json=settings.log_format == "json")
            # It takes over the signals, and drains.
            work.append(asyncio.create_task(_serve(graphs, settings, as_json=as_json)))
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)


async def _serve(graphs: Sequence[CompiledGraph], settings: Settings, *, as_json: bool) -> None:
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        await worker_module.serve(graphs, settings)


async def _first_death(stack: DevStack) -> None:
    while True:
        await asyncio.sleep(1)
        for server in stack.servers.values():
            if not server.running:
                raise CommandError(f"{server.name} ended by itself; see its log: {server.log_path}")


def _enter(stack: DevStack) -> None:
    """Point this process at the stack, whatever its environment said."""
    for name in list(os.environ):
        if name.startswith(_TEMPORAL_VARIABLES):
            del os.environ[name]
    os.environ["TEMPORAL_NAMESPACE"] = "default"
    os.environ.update(_variables(stack))


def _variables(stack: DevStack) -> dict[str, str]:
    return {
        "TEMPORAL_ADDRESS": stack.temporal_address,
        "TENXGRAPH_DATABASE_URL": stack.postgres_dsn,
        "TENXGRAPH_REDIS_URL": stack.redis_url,
    }


def _show_stack(stack: DevStack, settings: Settings, *, as_json: bool) -> None:
    variables = _variables(stack)
    if as_json:
        document: dict[str, Any] = {
            "temporal_address": stack.temporal_address,
            "ui_url": stack.ui_url,
            "database_url": stack.postgres_dsn,
            "redis_url": stack.redis_url,
            "directory": str(stack.directory),
            "task_queue": settings.task_queue,
            "env": variables,
        }
        out_json(document)
        return
    out(
        table(
            "server",
            "address",
            rows=[
                ["Temporal UI", stack.ui_url],
                ["Temporal", stack.temporal_address],
                ["Postgres", stack.postgres_dsn],
                ["Valkey", stack.redis_url],
                ["data, logs", str(stack.directory)],
            ],
        )
    )
    out("\nIn other terminals:\n")
    out("export " + " ".join(f"{name}={value}" for name, value in variables.items()))
    out("\nready; Ctrl-C ends everything")
    sys.stdout.flush()


def worker(
    graphs: Annotated[list[str], typer.Argument(metavar="module:graph...", help="Compiled graphs to host.")],
) -> None:
    """Host graphs on Temporal until SIGTERM, then drain.

    Example: tenxgraph-temporal worker my_agent:graph
    """
    raise typer.Exit(worker_module.main(graphs))


def setup(
    schema_only: Annotated[bool, typer.Option("--schema-only", help="Leave Temporal alone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create or migrate the database schema, and register the search attributes with Temporal.

    Repeating it is harmless.

    Example: tenxgraph-temporal setup
    """
    run_async(_setup(schema_only=schema_only, as_json=as_json))


async def _setup(*, schema_only: bool, as_json: bool) -> None:
    settings = Settings.from_env()
    async with opened_store(settings) as store:
        await store.setup()
    document: dict[str, Any] = {"schema": settings.database_schema, "search_attributes": None}
    if not as_json:
        out(f"schema {settings.database_schema!r} is up to date")
    if not schema_only:
        client = await connect(settings)
        made = await register(client)
        document["search_attributes"] = dataclasses.asdict(made)
        if made.created and not as_json:
            out(f"search attributes registered in namespace {client.namespace}: {', '.join(made.created)}")
        if made.existing and not as_json:
            out(f"search attributes already there: {', '.join(made.existing)}")
        if made.mistyped:
            note(f"warning: search attributes that are not of type Keyword: {', '.join(made.mistyped)}")
        if made.problem:
            note(f"warning: search attributes not registered ({made.problem}); an operator can run:")
            for name in made.missing:
                note(f"  {REMEDY.format(name=name)}")
    if as_json:
        out_json(document)


def doctor(as_json: AsJson = False) -> None:
    """Check everything that workers depend on, and name the remedy for what is wrong.

    Exits with 1 if a check failed; warnings are no failures.

    Example: tenxgraph-temporal doctor
    """
    if not run_async(_doctor(as_json=as_json)):
        raise typer.Exit(1)


async def _doctor(*, as_json: bool) -> bool:
    findings = []
    async for finding in examine():
        findings.append(finding)
        if not as_json:
            out(Text.assemble((f"{finding.status:<8}", _STYLES[finding.status]), f"{finding.check}: {finding.detail}"))
            if finding.remedy:
                out(f"        -> {finding.remedy}")
    failed = [finding.check for finding in findings if finding.status == "failed"]
    if as_json:
        out_json({"ok": not failed, "checks": [dataclasses.asdict(finding) for finding in findings]})
    if failed:
        note(f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}")
    return not failed


def codec_server(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")],
    host: Annotated[str, typer.Option(help="Where to listen; elsewhere than here only with a token.")] = "127.0.0.1",
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A UI that may ask, such as http://localhost:8233.")
    ] = None,
) -> None:
    """Decrypt for Temporal's UI and command line, with TENXGRAPH_ENCRYPTION_KEYS, until SIGTERM.

    Whoever reaches it can read payloads. TENXGRAPH_CODEC_SERVER_TOKEN makes callers need that token.

    Example: tenxgraph-temporal codec-server --port 8081 --allow-origin http://localhost:8233
    """
    settings = Settings.from_env()
    set_up_logging(level=settings.log_level, as_json=settings.log_format == "json")
    server = CodecServer(
        EncryptionCodec(settings.keys),
        host=host,
        port=port,
        origins=allow_origin or (),
        token=settings.codec_server_token.get_secret_value(),
    )
    run_async(_serve_codec(server))


async def _serve_codec(server: CodecServer) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with server:
        serving = asyncio.create_task(asyncio.to_thread(server.serve_forever))
        out(f"codec server ready: {server.url}")
        sys.stdout.flush()
        await stop.wait()
        await asyncio.to_thread(server.shutdown)
        await serving
