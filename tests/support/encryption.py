"""Keys, clients that have them, and what Temporal can read."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message as Proto
from temporalio.client import Client, WorkflowHistory

from tenxgraph_temporal import EncryptionKeys, RunHandle, WirePlugin

from .app import App

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
K1 = EncryptionKeys({"k1": OLD})
K2 = EncryptionKeys({"k2": NEW})
BOTH = EncryptionKeys({"k2": NEW, "k1": OLD})
REFUNDS = "tenxgraph_temporal.examples.refund_approval:graph"
SAID = "My card is hush-said"
ANSWERED = "hush-answered"
ARGUED = "hush-argued"


def variable(keys: EncryptionKeys) -> str:
    return ",".join(f"{key_id}:{base64.b64encode(key).decode()}" for key_id, key in keys.items())


async def with_keys(app: App, keys: EncryptionKeys) -> App:
    """The same corner of the servers, seen by a client with these keys."""
    client = await Client.connect(app.stack.temporal_address, plugins=[WirePlugin(keys=keys)])
    other = App(stack=app.stack, client=client, store=app.store, logs=app._logs)
    other.graphs._task_queue = other.queue = app.queue
    other.max_cached_workflows = 100  # as the fixture keeps_workflows says
    return other


async def raw_history(app: App, run: RunHandle) -> WorkflowHistory:
    """As the server has it: by a client that knows nothing of us."""
    client = await Client.connect(app.stack.temporal_address)
    return await client.get_workflow_handle(run.workflow.id).fetch_history()


def texts(message: Proto) -> bytes:
    return message.SerializeToString()


def readable(history: WorkflowHistory) -> bytes:
    return b"".join(map(texts, history.events))


def in_clear(history: WorkflowHistory) -> list[str]:
    """Where payloads are that are not encrypted."""
    return [where for event in history.events for where in _in_clear(json_format.MessageToDict(event), "")]


def _in_clear(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, dict) and "encoding" in (value.get("metadata") or {}):
        if base64.b64decode(value["metadata"]["encoding"]) != b"binary/encrypted":
            yield where
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name != "searchAttributes":
                yield from _in_clear(inner, where if name == "payloads" else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _in_clear(inner, where)


def key_ids(history: WorkflowHistory) -> set[str]:
    return {found.decode() for found in re.findall(rb"encryption-key-id\x12.(k\d)", readable(history))}
