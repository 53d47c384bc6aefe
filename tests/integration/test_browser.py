"""Temporal's UI in a real browser: a run reads like its graph there.

Needs playwright (the extra ``browser``) and a Chromium. ``SCREENSHOTS=docs/images`` renews the pictures of the docs.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tenxgraph_temporal import AgentState, RunHandle, StateGraph, WirePlugin, interrupt
from tenxgraph_temporal.runtime.client import RunFailed
from tenxgraph_temporal.runtime.devstack import dev_stack
from tenxgraph_temporal.runtime.devstack._layout import free_port
from tenxgraph_temporal.runtime.encryption_keys import EncryptionKeys
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore

from ..support.app import App, eventually
from ..support.codec import serving
from ..support.graphs import agent, call

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed: extra 'browser'")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture
async def page() -> AsyncIterator[Any]:
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield await browser.new_page(viewport={"width": 1400, "height": 900})
        await browser.close()


async def look(page: Any, app: App, run: RunHandle, tab: str, *texts: str, picture: str = "") -> None:
    """Open a tab of a run and find each of the texts there."""
    run_id = run.workflow.first_execution_run_id
    await page.goto(f"{app.stack.ui_url}/namespaces/default/workflows/{run.workflow.id}/{run_id}/{tab}")

    async def shown() -> bool:
        words = []
        for frame in page.frames:  # details are in frames of their own, which come and go
            with contextlib.suppress(playwright.Error):
                words.append((await frame.inner_text("body")).lower())
        return all(any(text.lower() in body for body in words) for text in texts)

    await eventually(shown, timeout=20)
    if picture and (directory := os.environ.get("SCREENSHOTS")):
        await page.wait_for_timeout(1000)
        await page.screenshot(path=Path(directory) / f"{picture}.png")


async def test_a_paused_run(app: App, page: Any) -> None:
    def lookup_order(order_id: str) -> str:
        return "found"

    def refund(order_id: str) -> str:
        return f"refunded: {interrupt({'order_id': order_id}, message='Refund it?')}"

    calls = [call("lookup_order", "call_1", order_id="4821"), call("refund", "call_2", order_id="4821")]
    graph = agent([lookup_order, refund], calls, name="support")
    app.max_cached_workflows = 100
    async with app.worker(graph):
        run = await app.start("support", app.thread(), "Please refund my order.")
        (asked,) = await eventually(run.interrupts)
        steps = ("node:model", "model (step 0)", "tool:lookup_order", "tool:refund", "refund call_2")
        await look(page, app, run, "timeline", *steps, picture="timeline")
        await look(page, app, run, "history", *steps, picture="history")
        details = (f"support: {run.thread_id}", "step 1", "Waiting for an answer:", asked.interrupt_id, "tool:call_2:0")
        await look(page, app, run, "user-metadata", *details, picture="paused")
        await run.answer({"approved": True})
        await run.result()
        await look(page, app, run, "timeline", "model (step 2)", "Completed")


async def test_a_failed_run_says_why(app: App, page: Any) -> None:
    def explode(state: Any) -> str:
        raise ValueError("the model is on fire")

    graph = StateGraph(AgentState, name="exploding").add_node("model", explode).set_entry_point("model").compile()
    async with app.worker(graph):
        run = await app.start("exploding", app.thread())
        with pytest.raises(RunFailed):
            await run.result()
    await look(page, app, run, "timeline", "node 'model' failed: ValueError: the model is on fire", picture="failed")


@pytest.mark.parametrize("shows", [True, False], ids=["with the codec server", "without it"])
async def test_an_encrypted_run_is_readable_through_the_codec_server_only(
    store: PostgresStore, tmp_path: Path, page: Any, shows: bool
) -> None:
    def lookup_order(order_id: str) -> str:
        return "found"

    keys = EncryptionKeys.parse("k1:" + base64.b64encode(b"0" * 32).decode())
    ui_port = free_port()
    with serving(keys, origins=[f"http://127.0.0.1:{ui_port}"]) as server:
        arguments = ["--ui-codec-endpoint", server.url] if shows else []
        async with dev_stack(postgres=False, redis=False, ui_port=ui_port, temporal_args=arguments) as stack:
            client = await Client.connect(stack.temporal_address, plugins=[WirePlugin(keys=keys)])
            app = App(stack=stack, client=client, store=store, logs=tmp_path)
            async with app.worker(agent([lookup_order], [call("lookup_order", "call_1", order_id="4821")])):
                run = await app.start("agent", app.thread(), "where is my order 4821?")
                await run.result()
            if shows:
                await look(page, app, run, "history", "where is my order 4821?", picture="decrypted-run")
            else:
                await look(page, app, run, "history", "node:model")
                await page.wait_for_timeout(1000)
                seen = [await frame.inner_text("body") for frame in page.frames]
                assert not any("where is my order" in text for text in seen)
