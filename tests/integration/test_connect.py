"""How we connect: as Temporal's environment configuration says; and secrets stay where they are."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
from temporalio.service import RPCError

from tenxgraph_temporal import connect
from tenxgraph_temporal.examples.process import python_process
from tenxgraph_temporal.runtime.errors import SettingsError

from ..support.app import App
from ..support.tls import Authority, Identity, tls_door

REFUNDS = "tenxgraph_temporal.examples.refund_approval:graph"
API_KEY = "sk-hunter2-api"
PASSWORD = "hunter2-password"
KEY = base64.b64encode(b"hunter2-encryption-key-32-bytes!").decode()
TOKEN = "hunter2-token"
SECRETS = (API_KEY, PASSWORD, KEY, KEY[:12], TOKEN, "hunter2")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("TEMPORAL_", "TENXGRAPH_")):
            monkeypatch.delenv(name)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Identity:
    return authority.issue("server", "127.0.0.1", "temporal.test")


def tls_variables(authority: Authority, client: Identity | None = None) -> dict[str, str]:
    """What Temporal's documentation has for TLS, and for mTLS."""
    variables = {"TEMPORAL_TLS_SERVER_CA_CERT_PATH": str(authority.certificate)}
    if client is not None:
        variables["TEMPORAL_TLS_CLIENT_CERT_PATH"] = str(client.certificate)
        variables["TEMPORAL_TLS_CLIENT_KEY_PATH"] = str(client.key)
    return variables


async def reach(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Connect with these variables, and ask something."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = await connect()
    with pytest.raises(RPCError, match="not found"):
        await client.get_workflow_handle("no-such-workflow").describe()


async def test_tls(app: App, monkeypatch: pytest.MonkeyPatch, authority: Authority, server: Identity) -> None:
    async with tls_door(app.stack.temporal_address, server) as door:
        await reach(monkeypatch, TEMPORAL_ADDRESS=door.address, **tls_variables(authority))
        assert door.headers, "it went through the door"
        assert not [sent for sent in door.headers if "authorization" in sent]


async def test_a_server_of_another_name(app: App, monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    elsewhere = authority.issue("elsewhere", "temporal.test")
    async with tls_door(app.stack.temporal_address, elsewhere) as door:
        with pytest.raises(SettingsError, match="the certificates that TEMPORAL_TLS_"):
            await reach(monkeypatch, TEMPORAL_ADDRESS=door.address, **tls_variables(authority))
        await reach(monkeypatch, TEMPORAL_TLS_SERVER_NAME="temporal.test")


async def test_a_server_that_nobody_vouches_for(
    app: App, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Identity
) -> None:
    async with tls_door(app.stack.temporal_address, server) as door:
        with pytest.raises(SettingsError, match="the certificates that TEMPORAL_TLS_"):
            await reach(
                monkeypatch, TEMPORAL_ADDRESS=door.address, **tls_variables(Authority(tmp_path, "another authority"))
            )
        assert not door.headers


async def test_mtls(app: App, monkeypatch: pytest.MonkeyPatch, authority: Authority, server: Identity) -> None:
    """By files, and by what the variables hold themselves."""
    client = authority.issue("client")
    async with tls_door(app.stack.temporal_address, server, clients=authority) as door:
        with pytest.raises(SettingsError, match="the certificates that TEMPORAL_TLS_"):
            await reach(monkeypatch, TEMPORAL_ADDRESS=door.address, **tls_variables(authority))
        assert not door.headers, "nobody without a certificate gets in"
        await reach(monkeypatch, **tls_variables(authority, client))
        for name in ("TEMPORAL_TLS_CLIENT_CERT", "TEMPORAL_TLS_CLIENT_KEY"):
            monkeypatch.setenv(f"{name}_DATA", Path(os.environ[f"{name}_PATH"]).read_text())
            monkeypatch.delenv(f"{name}_PATH")
        await reach(monkeypatch)


async def test_an_api_key(app: App, monkeypatch: pytest.MonkeyPatch, authority: Authority, server: Identity) -> None:
    """It goes with every request."""
    async with tls_door(app.stack.temporal_address, server) as door:
        variables = {"TEMPORAL_API_KEY": API_KEY, "TEMPORAL_NAMESPACE": "default", **tls_variables(authority)}
        await reach(monkeypatch, TEMPORAL_ADDRESS=door.address, **variables)
        assert door.headers
        assert {sent.get("authorization") for sent in door.headers} == {f"Bearer {API_KEY}"}
        assert "default" in {sent.get("temporal-namespace") for sent in door.headers}


async def test_an_api_key_never_goes_without_tls(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="TEMPORAL_API_KEY"):
        await reach(monkeypatch, TEMPORAL_ADDRESS=app.stack.temporal_address, TEMPORAL_API_KEY=API_KEY)


async def test_a_profile_of_a_file(
    app: App, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, authority: Authority, server: Identity
) -> None:
    async with tls_door(app.stack.temporal_address, server) as door:
        file = tmp_path / "temporal.toml"
        file.write_text(
            f'[profile.cloud]\naddress = "{door.address}"\napi_key = "{API_KEY}"\n'
            f'[profile.cloud.tls]\nserver_ca_cert_path = "{authority.certificate}"\n'
        )
        await reach(monkeypatch, TEMPORAL_CONFIG_FILE=str(file), TEMPORAL_PROFILE="cloud")
        assert {sent.get("authorization") for sent in door.headers} == {f"Bearer {API_KEY}"}


# --- secrets ------------------------------------------------------------------------------------------------


async def test_no_secret_is_in_what_a_worker_and_doctor_say(app: App, authority: Authority, server: Identity) -> None:
    """All of them set, through mTLS with an API key, for a whole run."""
    client = authority.issue("client")
    async with tls_door(app.stack.temporal_address, server, clients=authority) as door:
        variables = {
            **tls_variables(authority, client),
            "TEMPORAL_ADDRESS": door.address,
            "TEMPORAL_API_KEY": API_KEY,
            "TENXGRAPH_DATABASE_URL": app.stack.postgres_dsn.replace("@", f":{PASSWORD}@"),
            "TENXGRAPH_DATABASE_SCHEMA": app.store.schema,
            "TENXGRAPH_TASK_QUEUE": app.queue,
            "TENXGRAPH_ENCRYPTION_KEYS": f"2026-02:{KEY}",
            "TENXGRAPH_CODEC_SERVER_TOKEN": TOKEN,
        }
        assert PASSWORD in variables["TENXGRAPH_DATABASE_URL"]
        output = ""
        async with app.process(REFUNDS, **variables) as worker:
            for command in (
                ("run", "refunds", "hi", "--thread", "t1", "--detach"),
                ("doctor",),
                ("doctor", "--json"),
                ("resume", "t1", "--value", '{"approved": true}'),
                ("show", "t1"),
            ):
                async with python_process("tenxgraph_temporal.cli", *command, env=variables) as process:
                    assert await process.wait() == 0, process.output
                    output += process.output
            assert await worker.terminate() == 0
            output += worker.output
    assert "encryption: on: encrypts with 2026-02, decrypts with 2026-02" in output, output
    assert not [secret for secret in SECRETS if secret in output], output


@pytest.mark.parametrize(
    "variables",
    [
        {"TENXGRAPH_DATABASE_URL": "postgresql://user:hunter2/x@127.0.0.1:5432/db"},
        {"TENXGRAPH_DATABASE_URL": "postgresql://user:hunter2#x@127.0.0.1:5432/db"},
        {"TENXGRAPH_DATABASE_URL": "postgresql://user:x@[hunter2@127.0.0.1:5432/db"},
        {"TENXGRAPH_DATABASE_URL": "postgresql://user:x@hunter2:y@127.0.0.1:5432/db"},
        {"TENXGRAPH_DATABASE_URL": "postgresql://user:hunter2@127.0.0.1:1/db"},
        {"TENXGRAPH_DATABASE_URL": "user:hunter2@127.0.0.1"},
        {"TENXGRAPH_DATABASE_URL": "sqlite://user:hunter2@127.0.0.1/db"},
        {"TENXGRAPH_REDIS_URL": "redis://user:hunter2/x@127.0.0.1:1/0"},
        {"TENXGRAPH_REDIS_URL": "redis://user:hunter2@127.0.0.1:1/0"},
        {"TENXGRAPH_ENCRYPTION_KEYS": "hunter2"},
        {"TEMPORAL_API_KEY": "hunter2"},
        {"TEMPORAL_TLS_CLIENT_CERT_DATA": "hunter2", "TEMPORAL_TLS_CLIENT_KEY_DATA": "hunter2"},
    ],
    ids=lambda variables: "-".join(variables.values())[:40],
)
async def test_no_secret_is_in_what_is_said_of_a_wrong_setting(app: App, variables: dict[str, str]) -> None:
    environment = {
        "TEMPORAL_ADDRESS": "127.0.0.1:1" if "TEMPORAL" in str(variables) else app.stack.temporal_address,
        "TENXGRAPH_DATABASE_URL": app.stack.postgres_dsn,
        **variables,
    }
    (name, *_) = variables
    for command in (("cli", "doctor"), ("worker", REFUNDS), ("cli", "run", "g", "hi")):
        async with python_process(f"tenxgraph_temporal.{command[0]}", *command[1:], env=environment) as process:
            if "REDIS" in name and command[1] != "doctor":
                continue  # nobody else reads it
            if "DATABASE" in name and command[1] == "run":
                continue
            assert await process.wait() == 1, process.output
            assert "hunter2" not in process.output, process.output


@pytest.mark.parametrize("line", ['api_key = "sk-hunter2', 'api_key = ["sk-hunter2"]'])
async def test_no_secret_is_in_what_is_said_of_a_wrong_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    file = tmp_path / "temporal.toml"
    file.write_text(f"[profile.default]\n{line}\n")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))
    with pytest.raises(SettingsError, match=r"cannot be read: .* at line 2") as caught:
        await connect()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__, "a traceback would show it"
