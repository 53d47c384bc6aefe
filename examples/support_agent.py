"""The support agent of the story: one message asks for three tools, one of which moves money.

The model is scripted, so that nothing but the runtime is on stage; ``OUTSIDE_WORLD`` is the address of
``examples/outside_world.py``.
"""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

from tenxgraph_temporal import END, AgentState, Message, StateGraph, ToolContext, ToolNode


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


def _call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def model(state: AgentState) -> Message:
    """Ask for all three tools at once; when their results are there, answer."""
    if state.context[-1].role == "user":
        return Message(
            role="assistant",
            tools_calls=[
                _call(1, "lookup_order", order_id="4821"),
                _call(2, "charge_card", order_id="4821", amount_cents=1999),
                _call(3, "send_receipt", order_id="4821"),
            ],
        )
    return Message.text_message("Your card was charged 19.99 USD and the receipt is in your inbox.", role="assistant")


def wants_tools(state: AgentState) -> str:
    """After the model: its tools, or the end."""
    return "tools" if state.context[-1].tools_calls else END


builder = StateGraph(name="support")
builder.add_node("model", model)
builder.add_node("tools", ToolNode([lookup_order, charge_card, send_receipt]))
builder.set_entry_point("model")
builder.add_conditional_edges("model", wants_tools, ["tools", END])
builder.add_edge("tools", "model")
graph = builder.compile()
