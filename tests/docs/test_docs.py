"""What the documentation says is so: its code runs, its names exist, its links lead somewhere."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer.main

import tenxgraph_temporal
from tenxgraph_temporal import Settings, tool
from tenxgraph_temporal.cli_app import app as command_line
from tenxgraph_temporal.runtime.telemetry import Metrics

from ..support.app import App

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^(?:<!-- ([^>]*) -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DASHBOARD = DOCS / "grafana.json"
RULES = DOCS / "alerts.yml"

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(page: Path, kind: str, marked: str | None = None) -> list[str]:
    """The fenced blocks of a kind, with a mark before them if one is asked for."""
    found = BLOCK.findall(page.read_text())
    return [code for mark, language, code in found if language == kind and marked in (None, mark)]


def prose(page: Path) -> str:
    """The page without its Python."""
    return BLOCK.sub(lambda block: "" if block[2] == "python" else block[0], page.read_text())


def marked_pages(kind: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, kind, "run")]


async def execute(*command: str, cwd: Path, env: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, f"{shlex.join(command)}\n{output}"
    return output


def environment(app: App) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TEMPORAL_ADDRESS": app.stack.temporal_address,
        "TENXGRAPH_DATABASE_URL": app.stack.postgres_dsn,
        "TENXGRAPH_DATABASE_SCHEMA": app.store.schema,
        "TENXGRAPH_TASK_QUEUE": app.queue,
    }


# --- code ---------------------------------------------------------------------------------------------------


@each_page
def test_python_is_valid_and_names_what_exists(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, page.name, "exec")
        for names in re.findall(r"^from tenxgraph_temporal import \(?([^)]*?)\)?$", code, re.MULTILINE):
            for name in filter(None, map(str.strip, names.split(","))):
                assert hasattr(tenxgraph_temporal, name), name


@pytest.mark.parametrize("page", marked_pages("python"), ids=lambda page: page.stem)
async def test_python_runs(page: Path, app: App, tmp_path: Path) -> None:
    """The marked blocks of a page are one program."""
    program = tmp_path / f"{page.stem}.py"
    program.write_text("\n".join(blocks(page, "python", "run")))
    # Leaving at once: the SDK's threads sometimes abort a short process that ends the usual way.
    run = (
        f"import os, runpy, sys; runpy.run_path({str(program)!r}, run_name='__main__'); sys.stdout.flush(); os._exit(0)"
    )
    await execute(sys.executable, "-W", "error", "-c", run, cwd=tmp_path, env=environment(app))


@pytest.mark.parametrize("page", marked_pages("console"), ids=lambda page: page.stem)
async def test_commands_run(page: Path, app: App, tmp_path: Path) -> None:
    """The marked commands of a page, in order, with the example of a refund served."""
    shared = {"TENXGRAPH_TASK_QUEUE": "tenxgraph", "TENXGRAPH_DATABASE_SCHEMA": app.store.schema}
    async with app.process("tenxgraph_temporal.examples.refund_approval:graph", **shared):
        for line in "".join(blocks(page, "console", "run")).splitlines():
            program, *words = shlex.split(line)
            ours = (sys.executable, "-m", "tenxgraph_temporal.cli")  # whether or not its script is installed
            start = ours if program == "tenxgraph-temporal" else (program,)
            await execute(*start, *words, cwd=tmp_path, env=environment(app) | shared)


# --- links and names ----------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@each_page
def test_settings_exist(page: Path) -> None:
    settings = {f"TENXGRAPH_{name.upper()}" for name in Settings.model_fields}
    unknown = set(re.findall(r"\bTENXGRAPH_[A-Z][A-Z_]*[A-Z]\b", page.read_text())) - settings
    assert not unknown


@cache
def instruments() -> dict[str, set[str]]:
    """Our metrics by name, and the names that a Prometheus exporter makes of each."""
    provider = Mock()
    Metrics(provider)
    made = {}
    for kind, arguments, options in provider.get_meter.return_value.method_calls:
        if not kind.startswith("create_"):
            continue
        (name, *_), unit = arguments, options.get("unit", "")
        flat = name.replace(".", "_")
        suffix = {"s": "seconds", "By": "bytes"}.get(unit, "")
        if suffix and not flat.endswith(suffix):
            flat = f"{flat}_{suffix}"
        if "histogram" in kind:
            made[name] = {flat, *(f"{flat}_{part}" for part in ("bucket", "sum", "count"))}
        elif "up_down" in kind or "gauge" in kind:
            made[name] = {flat}
        else:
            made[name] = {f"{flat}_total"}
    return made


@pytest.mark.parametrize("page", [*PAGES, DASHBOARD, RULES], ids=lambda page: page.name)
def test_metrics_exist(page: Path) -> None:
    text = prose(page)
    dotted = set(re.findall(r"\btenxgraph\.[a-z_]+\.[a-z_]+\b", text))
    assert dotted <= instruments().keys()
    assert set(re.findall(r"\btenxgraph_(?!temporal)\w+\b", text)) <= set().union(*instruments().values())


def test_every_metric_is_described() -> None:
    assert instruments()
    text = (DOCS / "alerts.md").read_text()
    assert not [name for name in instruments() if f"`{name}`" not in text]


def test_the_dashboard_has_a_query_in_each_panel() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert panels
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(re.search("tenxgraph_|temporal_", target["expr"]) for panel in panels for target in panel["targets"])
    assert all(panel["targets"] for panel in panels)


def test_every_rule_is_described_and_whole() -> None:
    yaml = import_module("yaml")
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert "tenxgraph_ledger_unrecorded_total" in rules[0]["expr"]
    assert "COMPLETED but could not be recorded" in rules[0]["annotations"]["summary"]
    page = (DOCS / "alerts.md").read_text()
    for rule in rules:
        assert f"`{rule['alert']}`" in page
        assert f"| {rule['labels']['severity']} |" in page
        assert rule["annotations"]["summary"]
        assert re.search("(tenxgraph|temporal)_", rule["expr"])
    described = set(re.findall(r"`(TenxGraph[A-Z]\w+)`", page.partition("## Metrics")[0]))
    assert described - {"TenxGraphPlugin"} == {rule["alert"] for rule in rules}


@each_page
def test_data_blocks_parse(page: Path) -> None:
    for code in blocks(page, "json"):
        json.loads(code)
    for code in blocks(page, "yaml"):
        assert all(document for document in import_module("yaml").safe_load_all(code))


@each_page
def test_error_codes_exist(page: Path) -> None:
    ours = [*ROOT.glob("*.py"), *(f for d in ("runtime", "activities", "workflows") for f in (ROOT / d).rglob("*.py"))]
    known = "".join(file.read_text() for file in ours)
    for code in re.findall(r"\b[A-Z]+(?:_[A-Z]+)*_\d{3}\b", page.read_text()):
        assert code in known, code


def test_every_option_of_a_tool_is_described() -> None:
    text = (DOCS / "authoring.md").read_text()
    options = [name for name in inspect.signature(tool).parameters if name != "function"]
    assert not [name for name in options if f"`{name}`" not in text]


def test_the_proof_of_each_guarantee_exists() -> None:
    text = (DOCS / "guarantees.md").read_text()
    proofs = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert proofs
    for file, name in proofs:
        assert (ROOT / file).exists(), file
        assert not name or re.search(rf"def {name}\(", (ROOT / file).read_text()), f"{file}::{name}"


# --- commands -----------------------------------------------------------------------------------------------


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """Each use of ``program`` on the page, as a list of words."""
    text = page.read_text()
    lines = [line for kind in ("console", "sh") for code in blocks(page, kind) for line in _joined(code)]
    spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    for line in (*lines, *spans):
        if line.startswith(f"{program} "):
            yield shlex.split(line.replace("\\|", "|"), comments=True)[1:]


def _joined(code: str) -> list[str]:
    return code.replace("\\\n", " ").splitlines()


@each_page
def test_our_commands_exist(page: Path) -> None:
    for words in commands(page, "tenxgraph-temporal"):
        command: Any = typer.main.get_command(command_line)
        for word in words:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
            elif word.startswith("-"):
                known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
                assert word.partition("=")[0] in known, f"{page.name}: tenxgraph-temporal {shlex.join(words)}"
        assert command is not typer.main.get_command(command_line), words
        assert command.name in words or words[0].startswith("-"), f"{page.name}: no command {words}"


@cache
def temporal_help(words: tuple[str, ...]) -> str:
    program = shutil.which("temporal", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program is not None, "Temporal's command line is not installed; it comes with the extra dev"
    shown = subprocess.run([program, *words, "--help"], capture_output=True, text=True)
    return shown.stdout if shown.returncode == 0 else ""


@each_page
def test_temporals_commands_exist(page: Path) -> None:
    for words in commands(page, "temporal"):
        names = tuple(word for word in _until_option(words))
        shown = temporal_help(names)
        assert f"temporal {' '.join(names)}" in shown, f"{page.name}: temporal {shlex.join(words)}"
        for option in (word for word in words if word.startswith("--")):
            assert option.partition("=")[0] in shown, f"{page.name}: temporal {shlex.join(words)}"


def _until_option(words: list[str]) -> Iterator[str]:
    for word in words:
        if word.startswith("-"):
            return
        yield word


# --- the page that is written by a program ------------------------------------------------------------------


def test_the_settings_page_is_up_to_date() -> None:
    spec = spec_from_file_location("settings_reference", DOCS / "settings_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "settings.md").read_text() == module.render(), "run: python docs/settings_reference.py"


def test_pages_are_linked_from_each_other() -> None:
    linked = {link.partition("#")[0] for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())}
    assert not [page.name for page in PAGES if page.name != "concepts.md" and page.name not in linked]
