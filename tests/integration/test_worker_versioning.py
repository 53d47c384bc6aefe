"""Two builds of a worker side by side: paused runs end on the build that they began on, new ones go to the current."""

from __future__ import annotations

import os

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.service import RPCError

from tenxgraph_temporal import END, AgentState, StateGraph, interrupt
from tenxgraph_temporal.runtime.doctor import Finding, examine
from tenxgraph_temporal.runtime.errors import SettingsError
from tenxgraph_temporal.runtime.settings import Settings

from ..support.app import App, eventually


def ask(state: AgentState) -> str:
    """Which build answers."""
    interrupt("?")
    return f"answered by {os.environ['TENXGRAPH_BUILD_ID']}"


graph = StateGraph(name="versioned").add_node("ask", ask).set_entry_point("ask").add_edge("ask", END).compile()
SPEC = f"{__name__}:graph"


class Deployment:
    """The builds of one deployment, named after the test's task queue."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.name = f"deployment-{app.queue}"

    def env(self, build_id: str, **more: str) -> dict[str, str]:
        return {"TENXGRAPH_DEPLOYMENT_NAME": self.name, "TENXGRAPH_BUILD_ID": build_id, **more}

    async def make_current(self, build_id: str) -> None:
        client = self._app.client
        request = SetWorkerDeploymentCurrentVersionRequest(
            namespace=client.namespace, deployment_name=self.name, build_id=build_id
        )

        async def done() -> bool:
            try:
                await client.workflow_service.set_worker_deployment_current_version(request)
            except RPCError:  # its worker has not polled yet
                return False
            return True

        await eventually(done)


async def pause(app: App) -> str:
    """A run that waits for an answer; its thread."""
    thread_id = app.thread()
    run = await app.start("versioned", thread_id)

    async def waits() -> bool:
        return bool(await run.interrupts())

    await eventually(waits)
    return thread_id


async def answered_by(app: App, thread_id: str) -> str:
    run = app.graphs.handle(thread_id)
    await run.answer("yes")
    await run.result()
    return (await app.state(thread_id)).context[-1].text()


@pytest.mark.parametrize(("behavior", "expected"), [("pinned", "v1"), ("auto_upgrade", "v2")])
async def test_a_paused_run_ends_on_its_build_or_goes_on_with_the_current(
    app: App, behavior: str, expected: str
) -> None:
    deployment = Deployment(app)
    more = {"TENXGRAPH_VERSIONING_BEHAVIOR": behavior}
    async with app.process(SPEC, **deployment.env("v1", **more)):
        await deployment.make_current("v1")
        old = await pause(app)
        async with app.process(SPEC, **deployment.env("v2", **more)):
            await deployment.make_current("v2")
            new = await pause(app)
            assert await answered_by(app, new) == "answered by v2"
            assert await answered_by(app, old) == f"answered by {expected}"


async def test_doctor_says_where_new_runs_go(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment(app)
    monkeypatch.setenv("TEMPORAL_ADDRESS", app.stack.temporal_address)

    async def finding(build_id: str) -> Finding:
        for name, value in deployment.env(build_id).items():
            monkeypatch.setenv(name, value)
        (found,) = [finding async for finding in examine() if finding.check == "deployment"]
        return found

    nobody = await finding("v1")
    assert (nobody.status, nobody.detail) == ("warning", f"no worker of {deployment.name!r} has come")
    assert "start a worker with TENXGRAPH_BUILD_ID=v1" in nobody.remedy
    async with app.process(SPEC, **deployment.env("v1")):

        async def registered() -> bool:
            return "no current build" in (await finding("v1")).detail

        await eventually(registered)
        assert "set-current-version" in (await finding("v1")).remedy
        await deployment.make_current("v1")
        current = await finding("v1")
        assert (current.status, current.remedy) == ("ok", "")
        assert current.detail == f"new runs of {deployment.name!r} go to build 'v1'"
        other = await finding("v2")
        assert (other.status, "go to build 'v1', not 'v2'" in other.detail) == ("warning", True)


@pytest.mark.parametrize("name", ["TENXGRAPH_DEPLOYMENT_NAME", "TENXGRAPH_BUILD_ID"])
def test_deployment_and_build_come_together(name: str) -> None:
    with pytest.raises(SettingsError, match="TENXGRAPH_BUILD_ID are set together, or neither"):
        Settings.from_env({name: "x"})
