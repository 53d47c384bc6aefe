"""Looks at everything that a worker depends on, and names the remedy for what is wrong."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import Literal

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeWorkerDeploymentRequest,
    GetSystemInfoRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from .codec import EncryptionCodec
from .connect import connect
from .errors import SettingsError, TenxGraphError
from .search_attributes import REMEDY, look_up
from .settings import Settings
from .storage import Store, open_store

_TIMEOUT = 15.0
_CLOCK_TOLERANCE_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report. ``remedy`` is there where ``status`` is not ``ok``."""

    check: str
    status: Literal["ok", "warning", "failed", "skipped"]
    detail: str
    remedy: str = ""


async def examine() -> AsyncIterator[Finding]:
    """The findings, in order, as they are made. Never raises for what it finds."""
    versions = f"Python {platform.python_version()}, temporalio {metadata.version('temporalio')}"
    yield Finding(check="versions", status="ok", detail=versions)
    try:
        settings = Settings.from_env()
    except SettingsError as exc:
        yield _failed("settings", exc, "correct the variable")
        return
    yield Finding(check="settings", status="ok", detail=f"task queue {settings.task_queue}")
    yield _encryption(settings)
    async for finding in _temporal(settings):
        yield finding
    async for finding in _database(settings):
        yield finding
    yield await _redis(settings)


def _encryption(settings: Settings) -> Finding:
    keys = settings.keys
    try:
        EncryptionCodec(keys)
    except SettingsError as exc:
        return _failed("encryption", exc, "install it, also where your workers run")
    if not keys:
        detail = "off: TENXGRAPH_ENCRYPTION_KEYS is not set, what crosses Temporal is in clear"
    elif keys.current_id is None:
        detail = f"off for what is new; decrypts with {', '.join(keys.ids)}"
    else:
        detail = f"on: encrypts with {keys.current_id}, decrypts with {', '.join(keys.ids)}"
    return Finding(check="encryption", status="ok", detail=detail)


async def _temporal(settings: Settings) -> AsyncIterator[Finding]:
    try:
        client = await asyncio.wait_for(connect(settings), _TIMEOUT)
    except (TenxGraphError, TimeoutError) as exc:
        yield _failed("temporal", exc, "set TEMPORAL_ADDRESS, or start one with: tenxgraph-temporal dev")
        for check in ("namespace", "task queue", "search attributes"):
            yield Finding(check=check, status="skipped", detail="Temporal was not reached")
        return
    looks: list[tuple[str, Callable[[Client], Awaitable[Finding]]]] = [
        ("temporal", _server),
        ("namespace", _namespace),
        ("task queue", lambda c: _pollers(c, settings.task_queue)),
        ("search attributes", _search_attributes),
    ]
    if settings.deployment_name:
        looks.append(("deployment", lambda c: _deployment(c, settings)))
    for name, look in looks:
        finding = await _guarded(name, look, client)
        yield finding
        if name == "namespace" and finding.status == "failed":
            for check in ("task queue", "search attributes"):
                yield Finding(check=check, status="skipped", detail="there is no namespace")
            return


async def _guarded(name: str, look: Callable[[Client], Awaitable[Finding]], client: Client) -> Finding:
    try:
        return await asyncio.wait_for(look(client), _TIMEOUT)
    except (RPCError, TimeoutError) as exc:
        return _failed(name, exc, "see the Temporal server's log, and the permissions of this client")


async def _server(client: Client) -> Finding:
    info = await client.workflow_service.get_system_info(GetSystemInfoRequest())
    address = client.service_client.config.target_host
    return Finding(check="temporal", status="ok", detail=f"{address}, server {info.server_version or 'unknown'}")


async def _namespace(client: Client) -> Finding:
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as exc:
        if exc.status != RPCStatusCode.NOT_FOUND:
            raise
        return Finding(
            check="namespace",
            status="failed",
            detail=f"there is no namespace {client.namespace!r}",
            remedy=f"set TEMPORAL_NAMESPACE, or run: temporal operator namespace create -n {client.namespace}",
        )
    return Finding(check="namespace", status="ok", detail=client.namespace)


async def poller_count(client: Client, task_queue: str) -> int:
    """Workers that asked for workflow tasks of ``task_queue`` lately (the server forgets them after 5 minutes)."""
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    return len({poller.identity for poller in answer.pollers if _age(poller.last_access_time) < 90})


def _age(at: Timestamp) -> float:
    return (datetime.now(UTC) - at.ToDatetime(tzinfo=UTC)).total_seconds()


async def _pollers(client: Client, task_queue: str) -> Finding:
    count = await poller_count(client, task_queue)
    if count == 0:
        return Finding(
            check="task queue",
            status="warning",
            detail=f"no worker polls {task_queue!r}",
            remedy="start one: tenxgraph-temporal worker my_agent:graph",
        )
    return Finding(check="task queue", status="ok", detail=f"{count} worker(s) polled {task_queue!r} lately")


async def _deployment(client: Client, settings: Settings) -> Finding:
    """Which build gets new runs: while a deployment has no current one, they wait for ever."""
    name, ours = settings.deployment_name, settings.build_id
    make_current = (
        f"temporal worker deployment set-current-version --deployment-name {name} --build-id {ours} "
        "(once its workers are up)"
    )
    try:
        answer = await client.workflow_service.describe_worker_deployment(
            DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=name)
        )
    except RPCError as exc:
        if exc.status != RPCStatusCode.NOT_FOUND:
            raise
        remedy = f"start a worker with TENXGRAPH_BUILD_ID={ours}, then: {make_current}"
        return Finding(check="deployment", status="warning", detail=f"no worker of {name!r} has come", remedy=remedy)
    current = answer.worker_deployment_info.routing_config.current_deployment_version.build_id
    if current == ours:
        return Finding(check="deployment", status="ok", detail=f"new runs of {name!r} go to build {ours!r}")
    goes = f"go to build {current!r}, not {ours!r}" if current else "wait: it has no current build"
    return Finding(check="deployment", status="warning", detail=f"new runs of {name!r} {goes}", remedy=make_current)


async def _search_attributes(client: Client) -> Finding:
    found = await look_up(client)
    name = "search attributes"
    if found.problem:
        return Finding(
            check=name, status="warning", detail=f"cannot be listed: {found.problem}", remedy="ask the operator"
        )
    if found.mistyped:
        wrong = ", ".join(found.mistyped)
        remedy = "remove them and run: tenxgraph-temporal setup"
        return Finding(check=name, status="failed", detail=f"not of type Keyword: {wrong}", remedy=remedy)
    if found.missing:
        remedy = "tenxgraph-temporal setup, or: " + "; ".join(REMEDY.format(name=missing) for missing in found.missing)
        return Finding(check=name, status="failed", detail=f"not registered: {', '.join(found.missing)}", remedy=remedy)
    return Finding(check=name, status="ok", detail=", ".join(found.existing))


async def _database(settings: Settings) -> AsyncIterator[Finding]:
    scheme = settings.database_url.get_secret_value().partition(":")[0]
    name = "postgres" if scheme in ("postgres", "postgresql", "") else "database"
    try:
        store = await asyncio.wait_for(open_store(settings.model_copy(update={"database_pool_size": 1})), _TIMEOUT)
    except Exception as exc:  # drivers raise what they like; whatever it is, it is the finding
        yield _failed(name, exc, "check TENXGRAPH_DATABASE_URL, and that the server is up")
        for check in ("schema", "clock"):
            yield Finding(check=check, status="skipped", detail="the database was not reached")
        return
    try:
        pool = getattr(store, "pool", None)
        if pool is None:
            yield Finding(check=name, status="ok", detail=scheme)
        else:
            version = await pool.fetchval("SHOW server_version")
            yield Finding(check=name, status="ok", detail=f"server {version}")
        yield await _schema(store, settings)
        if pool is None:
            yield Finding(check="clock", status="skipped", detail="the database has no clock of its own")
        else:
            yield await _clock(pool.fetchval)
    except Exception as exc:
        yield _failed(name, exc, "check the server's log")
    finally:
        await store.close()


async def _schema(store: Store, settings: Settings) -> Finding:
    try:
        await store.check()
    except TenxGraphError as exc:
        return _failed("schema", exc, "run: tenxgraph-temporal setup")
    return Finding(check="schema", status="ok", detail=f"{settings.database_schema!r} is up to date")


async def _clock(fetchval: Callable[[str], Awaitable[datetime]]) -> Finding:
    before = datetime.now(UTC)
    theirs = await fetchval("SELECT clock_timestamp()")
    after = datetime.now(UTC)
    difference = (theirs - (before + (after - before) / 2)).total_seconds()
    detail = f"Postgres is {abs(difference):.3f} s {'ahead' if difference > 0 else 'behind'}"
    if abs(difference) > _CLOCK_TOLERANCE_SECONDS:
        remedy = "synchronise the clocks (NTP): times in listings and timeouts of questions are off by that"
        return Finding(check="clock", status="warning", detail=detail, remedy=remedy)
    return Finding(check="clock", status="ok", detail=detail)


async def _redis(settings: Settings) -> Finding:
    url = settings.redis_url.get_secret_value()
    if not url:
        return Finding(check="redis", status="skipped", detail="TENXGRAPH_REDIS_URL is not set; it is optional")
    from redis.asyncio import Redis

    try:
        redis: Redis = Redis.from_url(url, socket_connect_timeout=5, socket_timeout=5)
    except (ValueError, TypeError):  # whose text may quote the password
        return Finding(
            check="redis",
            status="failed",
            detail="TENXGRAPH_REDIS_URL cannot be read as redis://user:password@host:port/0",
            remedy="percent-encode any of :/?#[]@ in the user and the password",
        )
    try:
        try:
            info = await asyncio.wait_for(redis.info("server"), _TIMEOUT)
        finally:
            await redis.aclose()
    except Exception as exc:
        return _failed("redis", exc, "check TENXGRAPH_REDIS_URL, or unset it: runs work without, only slower")
    return Finding(check="redis", status="ok", detail=f"server {info.get('redis_version', 'unknown')}")


def _failed(check: str, exc: BaseException, remedy: str) -> Finding:
    text = str(exc.args[0]) if isinstance(exc, TenxGraphError) else str(exc) or "no answer"
    if not isinstance(exc, TenxGraphError):
        text = f"{type(exc).__name__}: {text}"
    return Finding(check=check, status="failed", detail=" ".join(text.split()), remedy=remedy)
