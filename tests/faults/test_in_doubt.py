"""A tool whose process is killed between its effect and its record: what each policy promises."""

from __future__ import annotations

from typing import Any

import pytest

from tenxgraph_temporal.runtime.tools.approval import DOUBT

from ..support.app import App, eventually
from ..support.graphs import results
from ..support.world import World

GRAPHS = "tenxgraph_temporal.tests.faults.doubt_graphs"


async def killed_after_the_effect(app: App, world: World, policy: str) -> Any:
    run = await app.start(policy, app.thread())
    fault = f"tool.returned/charge_{policy}=kill"
    async with app.process(f"{GRAPHS}:{policy}", OUTSIDE_WORLD=world.address, TENXGRAPH_FAULTS=fault) as worker:
        assert await worker.wait() == -9, worker.output
    assert (await world.counts())["charge"] == 1
    return run


async def test_rerun_runs_again_with_the_same_idempotency_key(app: App, world: World) -> None:
    run = await killed_after_the_effect(app, world, "rerun")
    async with app.process(f"{GRAPHS}:rerun", OUTSIDE_WORLD=world.address):
        await run.result()
    charges = await world.log()
    assert len(charges) == 2
    assert len({charge["body"]["key"] for charge in charges}) == 1
    assert [charge["body"]["attempt"] for charge in charges] == [1, 2]
    assert results(await app.state(run.thread_id)) == ["charged 2"]
    assert [c.status for c in await app.store.calls(run.thread_id)] == ["finished"]


async def test_fail_tells_the_model_that_nobody_knows(app: App, world: World) -> None:
    run = await killed_after_the_effect(app, world, "fail")
    assert [c.status for c in await app.store.calls(run.thread_id)] == ["running"]
    async with app.process(f"{GRAPHS}:fail", OUTSIDE_WORLD=world.address):
        await run.result()
    assert (await world.counts())["charge"] == 1
    (result,) = results(await app.state(run.thread_id))
    assert "outcome of 'charge_fail' is unknown" in result
    assert [c.status for c in await app.store.calls(run.thread_id)] == ["in_doubt"]


@pytest.mark.parametrize(
    ("answer", "charged", "expected"),
    [
        ({"outcome": "happened", "result": "charged, says the bank"}, 1, "charged, says the bank"),
        ({"outcome": "not_happened"}, 2, "charged 2"),
        ({"outcome": "failed"}, 1, "outcome of 'charge_ask' is unknown"),
        (None, 1, "outcome of 'charge_ask' is unknown"),
    ],
    ids=["happened", "not_happened", "failed", "cancelled"],
)
async def test_ask_pauses_for_a_person(app: App, world: World, answer: Any, charged: int, expected: str) -> None:
    run = await killed_after_the_effect(app, world, "ask")
    async with app.process(f"{GRAPHS}:ask", OUTSIDE_WORLD=world.address):

        async def asked() -> bool:
            return len(await run.interrupts()) == 1

        await eventually(asked)
        meta = (await app.state(run.thread_id)).execution_meta
        assert meta.interrupt_data is not None
        assert meta.interrupt_data["interrupt"]["reason"] == DOUBT
        assert [c.status for c in await app.store.calls(run.thread_id)] == ["in_doubt"]
        await run.answer(answer, by="ada")
        await run.result()
    assert (await world.counts())["charge"] == charged
    (result,) = results(await app.state(run.thread_id))
    assert expected in result


async def test_a_shared_transaction_is_exactly_once(app: App) -> None:
    """Killed after the tool's own statements and before the commit: neither is there; afterwards both are, once."""
    await app.store.pool.execute(f'CREATE TABLE "{app.store.schema}".bookings (amount int)')

    async def bookings() -> int:
        return int(await app.store.pool.fetchval(f'SELECT count(*) FROM "{app.store.schema}".bookings'))

    run = await app.start("booking", app.thread())
    async with app.process(f"{GRAPHS}:booking", TENXGRAPH_FAULTS="tool.returned/book=kill") as worker:
        assert await worker.wait() == -9, worker.output

    async def rolled_back() -> bool:
        return await bookings() == 0 and await app.store.calls(run.thread_id) == []

    await eventually(rolled_back)
    async with app.process(f"{GRAPHS}:booking"):
        await run.result()
    assert await bookings() == 1
    assert [c.status for c in await app.store.calls(run.thread_id)] == ["finished"]
