"""Connecting to Temporal, as Temporal's own environment configuration says."""

from __future__ import annotations

import dataclasses

from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, DefaultPayloadConverter
from temporalio.envconfig import ClientConfig
from temporalio.plugin import SimplePlugin
from temporalio.runtime import Runtime

from .errors import SettingsError
from .telemetry.interceptors import CallersTrace


def with_our_models(converter: DataConverter | None) -> DataConverter:
    """A data converter that carries our wire models; a codec or converter of the user's own is kept."""
    converter = converter or DataConverter.default
    if converter.payload_converter_class is DefaultPayloadConverter:
        return dataclasses.replace(converter, payload_converter_class=PydanticPayloadConverter)
    return converter


class WirePlugin(SimplePlugin):
    """Makes a Temporal client speak our wire models, and its runs continue the trace of the caller's span.

    For clients; ``TenxGraphPlugin`` is for workers.
    """

    def __init__(self) -> None:
        super().__init__("tenxgraph_temporal.Wire", data_converter=with_our_models, interceptors=[CallersTrace()])


async def connect(*, runtime: Runtime | None = None) -> Client:
    """A client for the server that the environment names (``localhost:7233`` by default).

    Args:
        runtime: Temporal's, if it is not to be the SDK's default one.

    Raises:
        SettingsError: The configuration is wrong, or the server cannot be reached; names the address.
    """
    try:
        config = ClientConfig.load_client_connect_config()
    except Exception as exc:
        raise SettingsError(f"Temporal's environment configuration cannot be read: {exc}") from exc
    address = config.setdefault("target_host", "localhost:7233")
    try:
        return await Client.connect(**config, plugins=[WirePlugin()], runtime=runtime)
    except (RuntimeError, ValueError, OSError) as exc:
        raise SettingsError(
            f"no Temporal server at {address} (namespace {config.get('namespace', 'default')!r}): {exc}; set "
            "TEMPORAL_ADDRESS, or start one with: tenxgraph-temporal dev"
        ) from exc
