"""A refund that a person has to approve: the run waits in Temporal for the answer, however long that takes.

Run it with ``python -m tenxgraph_temporal.examples.refund_approval``: it starts the embedded servers, a worker and a
run, shows the question, answers it, and prints what the agent says.
"""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from tenxgraph_temporal import (
    END,
    GraphClient,
    ModelNode,
    ScriptedModel,
    Settings,
    StateGraph,
    TenxGraphPlugin,
    ToolNode,
    WirePlugin,
    call,
    interrupt,
    open_store,
    thread_state,
)
from tenxgraph_temporal.runtime.devstack import dev_stack
from tenxgraph_temporal.worker import leave


async def refund(order_id: str, amount: float) -> str:
    """Refund an order, once a person has approved it."""
    decision: Any = interrupt(
        {"order_id": order_id, "amount": amount},
        message=f"Refund ${amount:.2f} for order {order_id}?",
        response_schema={"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]},
    )
    if not decision or not decision["approved"]:
        return "Refund declined"
    return f"Refunded ${amount:.2f}"  # the effect belongs here, after the question


tools = ToolNode([refund])
model = ScriptedModel([[call("refund", order_id="4821", amount=19.99)], "Your refund is on its way."])
builder = StateGraph(name="refunds")
builder.add_node("model", ModelNode(model, tools=tools))
builder.add_node("tools", tools)
builder.set_entry_point("model")
builder.add_conditional_edges("model", lambda state: "tools" if state.context[-1].tools_calls else END, ["tools", END])
builder.add_edge("tools", "model")
graph = builder.compile()


async def main() -> None:
    """Ask, answer, finish."""
    async with dev_stack() as stack:
        store = await open_store(Settings.model_validate({"database_url": stack.postgres_dsn}))
        await store.setup()
        client = await Client.connect(stack.temporal_address, plugins=[WirePlugin()])
        async with Worker(client, task_queue="tenxgraph", plugins=[TenxGraphPlugin([graph], store)]):
            run = await GraphClient(client).start("refunds", "order-4821", "I want my money back.")
            while not await run.interrupts():
                await asyncio.sleep(0.05)
            state = await thread_state(store, "order-4821")
            print("The run waits for:", (state.execution_meta.interrupt_data or {})["interrupt"]["message"])
            await run.answer({"approved": True}, by="ada")
            await run.result()
            for message in (await thread_state(store, "order-4821")).context:
                print(f"{message.role:>9}: {message.text()}")
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
    leave(0)
