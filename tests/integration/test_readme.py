"""What the README shows is run as it is printed."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tenxgraph_temporal.runtime.state import AgentState

from ..support.app import App

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(kind: str) -> list[tuple[str, str]]:
    """The fenced blocks of a kind, each with the comment before it."""
    return re.findall(rf"(?:<!-- ([^>]*) -->\n)?```{kind}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", [code for _, code in blocks("python")])
def test_python_blocks_are_valid(code: str) -> None:
    ast.parse(code)


async def test_the_graph_runs_and_the_commands_work_as_printed(app: App, tmp_path: Path) -> None:
    for comment, code in blocks("python"):
        if comment.startswith("file: "):
            (tmp_path / comment.removeprefix("file: ")).write_text(code)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TEMPORAL_ADDRESS": app.stack.temporal_address,
        "TENXGRAPH_DATABASE_URL": app.stack.postgres_dsn,
    }

    async def run(*command: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=tmp_path,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, f"{shlex.join(command)}\n{output}"
        return output

    (commands,) = (code for comment, code in blocks("console") if comment == "run")
    python_path = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    public = {"TENXGRAPH_TASK_QUEUE": "tenxgraph", "TENXGRAPH_DATABASE_SCHEMA": "public"}
    async with app.process("my_agent:graph", **python_path, **public):
        for line in commands.strip().splitlines():
            output = await run(*shlex.split(line))
        assert "WorkflowExecutionCompleted" in output
        # Leaving at once: the SDK's threads sometimes abort a short process that ends the usual way.
        leaving = (
            "import os, runpy, sys; runpy.run_path('ask.py', run_name='__main__'); sys.stdout.flush(); os._exit(0)"
        )
        said = await run(sys.executable, "-c", leaving)
    assert said.strip().splitlines()[-1] == "Your card was charged."


def test_the_python_examples_in_prose_name_what_exists() -> None:
    import tenxgraph_temporal

    for name in re.findall(r"from tenxgraph_temporal import (.*)", README):
        for part in name.split(", "):
            assert hasattr(tenxgraph_temporal, part), part
    assert issubclass(tenxgraph_temporal.AgentState, AgentState)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
