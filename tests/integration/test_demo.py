"""The demo tells the truth: charged once with the ledger, twice without."""

from __future__ import annotations

import asyncio
import re
import sys


async def test_the_demo() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tenxgraph_temporal.examples.demo",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await asyncio.wait_for(process.communicate(), 150))[0].decode()
    assert process.returncode == 0, output
    for tool, without in (("lookup_order", "1 time "), ("charge_card", "2 times"), ("send_receipt", "1 time ")):
        assert re.search(rf"{tool} +│ 1 time +│ {without}", output), output
    assert "With the ledger the card was charged once." in output
    assert "/namespaces/default/workflows/thread-order-4821-ledger" in output
