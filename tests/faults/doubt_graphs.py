"""Graphs whose tool may be left in doubt, one per policy, and one whose tool shares the ledger's transaction."""

from __future__ import annotations

import os

from tenxgraph_temporal import ToolContext, tool

from ..support.graphs import agent, call
from ..support.world import do


def _charge(context: ToolContext) -> str:
    done = do(os.environ["OUTSIDE_WORLD"], "charge", key=context.idempotency_key, attempt=context.attempt)
    return f"charged {done['done']}"


@tool(in_doubt="rerun")
def charge_rerun(context: ToolContext) -> str:
    return _charge(context)


@tool(in_doubt="fail")
def charge_fail(context: ToolContext) -> str:
    return _charge(context)


@tool(in_doubt="ask")
def charge_ask(context: ToolContext) -> str:
    return _charge(context)


async def book(amount: int, context: ToolContext) -> str:
    schema = os.environ["TENXGRAPH_DATABASE_SCHEMA"]
    async with context.transaction() as connection:
        await connection.execute(f'INSERT INTO "{schema}".bookings (amount) VALUES ($1)', amount)
    return "booked"


rerun = agent([charge_rerun], [call("charge_rerun", "1")], name="rerun")
fail = agent([charge_fail], [call("charge_fail", "1")], name="fail")
ask = agent([charge_ask], [call("charge_ask", "1")], name="ask")
booking = agent([book], [call("book", "1", amount=5)], name="booking")
