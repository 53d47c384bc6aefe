"""Temporal namespaces of a test's own."""

from __future__ import annotations

import uuid
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from tenxgraph_temporal import WirePlugin
from tenxgraph_temporal.runtime.devstack import DevStack

from .app import eventually


async def client_of_new_namespace(stack: DevStack) -> Client:
    """A client of a namespace that nobody else uses."""
    retention = Duration()
    retention.FromTimedelta(timedelta(days=1))
    name = f"ns-{uuid.uuid4().hex[:12]}"
    request = RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
    client = await Client.connect(stack.temporal_address, namespace=name, plugins=[WirePlugin()])
    await client.workflow_service.register_namespace(request)

    async def known() -> bool:
        try:
            return [execution async for execution in client.list_workflows()] == []
        except RPCError:
            return False

    await eventually(known)
    return client
