"""All commands, put together."""

from __future__ import annotations

import typer

from . import cli_runs, cli_servers, cli_thread_edits, cli_threads

app = typer.Typer(
    name="tenxgraph-temporal",
    help="Durable agent graphs on Temporal. Settings come from TEMPORAL_* and TENXGRAPH_* variables.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Try: tenxgraph-temporal dev my_agent:graph",
)

app.command()(cli_servers.dev)
app.command()(cli_servers.worker)
app.command()(cli_servers.setup)
app.command()(cli_servers.doctor)
app.command()(cli_servers.codec_server)
app.command()(cli_runs.run)
app.command()(cli_runs.stop)
app.command()(cli_runs.resume)
app.command()(cli_threads.show)
for change in (cli_thread_edits.fork, cli_thread_edits.edit, cli_thread_edits.delete, cli_thread_edits.purge):
    cli_threads.app.command()(change)
app.add_typer(cli_threads.app, name="threads")
