"""Tests that need not wait: Temporal's own time skipping, which the dev stack switches on."""

from __future__ import annotations

from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import TimeSkippingConfig, WorkflowExecution
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionOptionsRequest
from temporalio.client import Client, WorkflowHandle


async def skip_time(client: Client, workflow: WorkflowHandle[Any, Any], *, skip: bool = True) -> None:
    """From now on the workflow's clock jumps to its next timer whenever nothing but timers is waited for.

    Of an interrupt with ``timeout=``, a pause between attempts, and whatever else waits in the workflow; an activity
    that runs takes its time as ever. ``skip=False`` lets the clock go on by itself again.

    Raises:
        RPCError: The server has no time skipping (``frontend.WorkflowTimeSkippingEnabled``, from 1.32), or the
            workflow is not open.
    """
    await client.workflow_service.update_workflow_execution_options(
        UpdateWorkflowExecutionOptionsRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow.id),
            workflow_execution_options=WorkflowExecutionOptions(time_skipping_config=TimeSkippingConfig(enabled=skip)),
            update_mask=FieldMask(paths=["time_skipping_config"]),
        )
    )
