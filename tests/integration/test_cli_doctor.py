"""``doctor``, and how every command says that a server cannot be reached."""

from __future__ import annotations

import pytest

from tenxgraph_temporal.runtime.devstack._layout import free_port

from ..support.app import App, eventually
from ..support.cli import asking, cli, one_line, status_of


async def test_doctor_finds_nothing_wrong(app: App) -> None:
    redis = app.stack.redis_url
    idle = await cli(app, "doctor", "--json", TENXGRAPH_REDIS_URL=redis)
    assert idle.code == 0, idle
    assert status_of(idle, "task queue") == "warning", idle
    async with app.worker(asking()):

        async def polled() -> bool:
            return status_of(await cli(app, "doctor", "--json"), "task queue") == "ok"

        await eventually(polled)
        well = await cli(app, "doctor", "--json", TENXGRAPH_REDIS_URL=redis)
    assert well.code == 0, well
    assert well.json["ok"] is True
    assert {finding["status"] for finding in well.json["checks"]} == {"ok"}, well
    text = await cli(app, "doctor")
    assert text.code == 0, text
    assert "Python 3" in text.out, text


@pytest.mark.parametrize(
    ("keys", "detail"),
    [
        ("", "off: TENXGRAPH_ENCRYPTION_KEYS is not set"),
        (f"k2:{'A' * 43}=,k1:{'B' * 42}A=", "on: encrypts with k2, decrypts with k2, k1"),
        (f"plain,k1:{'A' * 43}=", "off for what is new; decrypts with k1"),
    ],
)
async def test_doctor_says_what_is_encrypted(app: App, keys: str, detail: str) -> None:
    ended = await cli(app, "doctor", "--json", TENXGRAPH_ENCRYPTION_KEYS=keys)
    assert ended.code == 0, ended
    (found,) = [check for check in ended.json["checks"] if check["check"] == "encryption"]
    assert found["detail"].startswith(detail), ended
    assert "AAAA" not in ended.out, ended


async def test_a_codec_server_without_keys_is_one_line(app: App) -> None:
    ended = await cli(app, "codec-server", "--port", "0")
    assert ended.code == 1, ended
    assert "set TENXGRAPH_ENCRYPTION_KEYS" in one_line(ended)


@pytest.mark.parametrize(
    ("broken", "check", "remedy"),
    [
        ("postgres", "postgres", "TENXGRAPH_DATABASE_URL"),
        ("temporal", "temporal", "tenxgraph-temporal dev"),
        ("namespace", "namespace", "TEMPORAL_NAMESPACE"),
        ("schema", "schema", "tenxgraph-temporal setup"),
        ("redis", "redis", "TENXGRAPH_REDIS_URL"),
        ("unset", "postgres", "TENXGRAPH_DATABASE_URL"),
        ("setting", "settings", "TENXGRAPH_TYPO"),
    ],
)
async def test_doctor_names_what_is_broken_and_the_remedy(app: App, broken: str, check: str, remedy: str) -> None:
    changes: dict[str, dict[str, str | None]] = {
        "postgres": {"TENXGRAPH_DATABASE_URL": f"postgresql://postgres@127.0.0.1:{free_port()}/postgres"},
        "temporal": {"TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}"},
        "namespace": {"TEMPORAL_NAMESPACE": "nowhere"},
        "schema": {"TENXGRAPH_DATABASE_SCHEMA": "never_set_up"},
        "redis": {"TENXGRAPH_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"},
        "unset": {"TENXGRAPH_DATABASE_URL": None},
        "setting": {"TENXGRAPH_TYPO": "1"},
    }
    ended = await cli(app, "doctor", "--json", **changes[broken])
    assert ended.code == 1, ended
    assert ended.json["ok"] is False
    (found,) = [finding for finding in ended.json["checks"] if finding["status"] == "failed"]
    assert found["check"] == check, ended
    assert remedy in found["remedy"] + found["detail"], ended
    assert one_line(ended).endswith(f"failed: {check}"), ended
    text = await cli(app, "doctor", **changes[broken])
    assert text.code == 1, text
    assert "-> " in text.out, text


@pytest.mark.parametrize("command", [("threads",), ("setup",), ("show", "t")])
async def test_an_unreachable_database_is_one_line(app: App, command: tuple[str, ...]) -> None:
    address = f"postgresql://postgres@127.0.0.1:{free_port()}/postgres"
    ended = await cli(app, *command, TENXGRAPH_DATABASE_URL=address)
    assert ended.code == 1, ended
    assert "Postgres cannot be reached" in one_line(ended)


@pytest.mark.parametrize("command", [("run", "g", "hi"), ("stop", "t"), ("resume", "t", "--value", "1")])
async def test_an_unreachable_temporal_is_one_line(app: App, command: tuple[str, ...]) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = await cli(app, *command, TEMPORAL_ADDRESS=address)
    assert ended.code == 1, ended
    assert f"no Temporal server at {address}" in one_line(ended)
