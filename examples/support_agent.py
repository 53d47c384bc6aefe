"""The support agent of the story: one message asks for three tools, one of which moves money.

The model is scripted, so that nothing but the runtime is on stage; ``OUTSIDE_WORLD`` is the address of
``examples/outside_world.py``.
"""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

from tenxgraph_temporal import END, AgentState, ModelNode, ScriptedModel, StateGraph, ToolContext, ToolNode, call


def _ask_the_world(action: str, **body: Any) -> Any:
    url = f"{os.environ['OUTSIDE_WORLD']}/{action}"
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def lookup_order(order_id: str) -> dict[str, Any]:
    """Look up an order."""
    _ask_the_world("lookup_order", order_id=order_id)
    return {"order_id": order_id, "amount_cents": 1999, "card": "**** 4242"}


def charge_card(order_id: str, amount_cents: int, context: ToolContext) -> str:
    """Charge the customer's saved card."""
    _ask_the_world("charge_card", order_id=order_id, idempotency_key=context.idempotency_key)
    return f"charged {amount_cents / 100:.2f} USD for order {order_id}"


def send_receipt(order_id: str) -> str:
    """E-mail the receipt."""
    _ask_the_world("send_receipt", order_id=order_id)
    return "receipt sent"


tools = ToolNode([lookup_order, charge_card, send_receipt])
model = ScriptedModel(
    [
        [
            call("lookup_order", order_id="4821"),
            call("charge_card", order_id="4821", amount_cents=1999),
            call("send_receipt", order_id="4821"),
        ],
        "Your card was charged 19.99 USD and the receipt is in your inbox.",
    ]
)


def wants_tools(state: AgentState) -> str:
    """After the model: its tools, or the end."""
    return "tools" if state.context[-1].tools_calls else END


builder = StateGraph(name="support")
builder.add_node("model", ModelNode(model, tools=tools))
builder.add_node("tools", tools)
builder.set_entry_point("model")
builder.add_conditional_edges("model", wants_tools, ["tools", END])
builder.add_edge("tools", "model")
graph = builder.compile()
