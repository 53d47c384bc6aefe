"""What can be known about the containers without an engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from datetime import timedelta
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tenxgraph_temporal import Settings
from tenxgraph_temporal.cli_app import app

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VARIABLE = re.compile(r"(?<!\$)\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The parsed file, variables as they are written."""
    parsed: dict[str, Any] = import_module("yaml").safe_load(COMPOSE.read_text())
    return parsed


def filled(value: Any) -> Any:
    """``value`` with each variable at its default."""
    if isinstance(value, dict):
        return {name: filled(item) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item) for item in value]
    if isinstance(value, str):
        return VARIABLE.sub(lambda found: found["default"] or "", value).replace("$$", "$")
    return value


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


def test_every_variable_has_a_default() -> None:
    variables = list(VARIABLE.finditer(COMPOSE.read_text()))
    assert variables
    assert not [found["name"] for found in variables if found["default"] is None]


def test_services_wait_for_what_they_need(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in services, f"{name} depends on {needed}"
            other = services[needed]
            match how["condition"]:
                case "service_healthy":
                    assert "test" in other["healthcheck"], f"{name} waits for the health of {needed}: it has no check"
                case "service_completed_successfully":
                    assert other["restart"].startswith("on-failure"), f"{needed} would never complete"
                case other_condition:
                    pytest.fail(f"{name} waits for {needed} by {other_condition}")
    assert {"postgres", "valkey", "temporal", "temporal-ui", "setup", "worker"} <= services.keys()
    assert services["worker"]["depends_on"]["setup"]["condition"] == "service_completed_successfully"


def test_volumes_and_configs_exist_and_are_used(compose: dict[str, Any]) -> None:
    volumes: set[str] = set()
    configs: set[str] = set()
    for service in filled(compose)["services"].values():
        for volume in service.get("volumes", ()):
            source, target = (volume["source"], volume["target"]) if isinstance(volume, dict) else volume.split(":")[:2]
            assert target.startswith("/")
            if source.startswith("."):
                assert (ROOT / source).is_dir()
            elif not Path(source).is_absolute():
                volumes.add(source)
        configs.update(config["source"] for config in service.get("configs", ()))
    assert volumes == compose["volumes"].keys()
    assert configs == compose["configs"].keys()


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    for name, service in filled(compose)["services"].items():
        image, _, tag = service["image"].rpartition(":")
        assert image, f"the image of {name} has no tag"
        assert tag
        assert tag != "latest"
        assert "auto-setup" not in image
    temporal = {service["image"] for service in compose["services"].values() if "temporalio/" in service["image"]}
    assert {image.partition(":")[0] for image in temporal} == {
        "temporalio/server",
        "temporalio/admin-tools",
        "temporalio/ui",
    }


@pytest.mark.parametrize("service", ["setup", "worker"])
def test_our_settings_are_settings(compose: dict[str, Any], service: str) -> None:
    environment = filled(compose)["services"][service]["environment"]
    settings = Settings.from_env({name: str(value) for name, value in environment.items()})
    url = settings.database_url.get_secret_value()
    assert re.fullmatch(r"postgresql://\w+:\w+@postgres:5432/\w+", url)


def test_our_commands_exist(compose: dict[str, Any]) -> None:
    (script,) = PROJECT["project"]["scripts"]
    assert f'ENTRYPOINT ["{script}"]' in DOCKERFILE
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for service in ("setup", "worker"):
        assert compose["services"][service]["command"][0] in commands


def test_the_graph_of_the_default_can_be_loaded(compose: dict[str, Any]) -> None:
    worker = filled(compose)["services"]["worker"]
    (mounted,) = [volume for volume in worker["volumes"] if ":/graphs" in volume]
    load = "import sys; from tenxgraph_temporal.worker import load_graph; print(load_graph(sys.argv[1]).name)"
    command = [sys.executable, "-c", load, worker["command"][1]]
    loaded = subprocess.run(command, cwd=ROOT / mounted.split(":")[0], capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr


def test_the_worker_has_time_to_drain(compose: dict[str, Any]) -> None:
    worker = filled(compose)["services"]["worker"]
    settings = Settings.from_env({name: str(value) for name, value in worker["environment"].items()})
    grace = timedelta(seconds=seconds(worker["stop_grace_period"]))
    assert grace > settings.graceful_shutdown_timeout + settings.cancel_grace


def test_scripts_are_valid_shell(compose: dict[str, Any]) -> None:
    scripts = 0
    for service in filled(compose)["services"].values():
        if service.get("entrypoint", [""])[0] == "/bin/sh":
            (script,) = service["command"]
            checked = subprocess.run(["/bin/sh", "-n"], input=script, text=True, capture_output=True)
            assert checked.returncode == 0, checked.stderr
            scripts += 1
    assert scripts


def test_the_image_drains_and_is_watched() -> None:
    last_stage = DOCKERFILE.rpartition("FROM ")[2]
    assert re.search(r"^USER [1-9]\d*", last_stage, re.MULTILINE)
    assert "STOPSIGNAL SIGTERM" in last_stage
    (check,) = re.findall(r"^HEALTHCHECK .*\\\n(.*)$", last_stage, re.MULTILINE)
    command = json.loads(check.strip().removeprefix("CMD "))
    assert command[0] == "python"
    compile(command[2], "HEALTHCHECK", "exec")
    assert "TENXGRAPH_HEALTH_PORT" in command[2]
    assert "/healthz" in command[2]
    for stage in re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE):
        assert stage == "python:${PYTHON_VERSION}-slim"
    assert "ARG PYTHON_VERSION=3.13\n" in DOCKERFILE
    assert "-c constraints.txt" in DOCKERFILE


def test_the_build_sees_what_it_needs() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    packages = [name.split(".")[1] for name in PROJECT["tool"]["setuptools"]["packages"] if "." in name]
    for needed in {"pyproject.toml", "constraints.txt", PROJECT["project"]["readme"], "worker.py", *packages}:
        assert not [pattern for pattern in ignored if fnmatch(needed, pattern)], f"{needed} is left out of the build"
    assert ".*" in ignored, ".import-root holds a link to the directory that it is in"
