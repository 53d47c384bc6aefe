"""Connecting to Temporal, as Temporal's own environment configuration says."""

from __future__ import annotations

import dataclasses
from functools import partial

from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, DefaultFailureConverter, DefaultPayloadConverter
from temporalio.envconfig import ClientConfig
from temporalio.plugin import SimplePlugin
from temporalio.runtime import Runtime

from .codec import EncodedFailureConverter, EncryptionCodec
from .encryption_keys import EncryptionKeys
from .errors import SettingsError
from .settings import Settings
from .telemetry.interceptors import CallersTrace

_NO_KEYS = EncryptionKeys()


def with_our_models(converter: DataConverter | None, keys: EncryptionKeys = _NO_KEYS) -> DataConverter:
    """A data converter that carries our wire models, encrypted if there are keys.

    A payload converter, failure converter or codec of the user's own is kept.

    Raises:
        SettingsError: There are keys, and a codec of the user's own: which of the two comes first is theirs to say.
    """
    converter = converter or DataConverter.default
    changes: dict[str, object] = {}
    if converter.payload_converter_class is DefaultPayloadConverter:
        changes["payload_converter_class"] = PydanticPayloadConverter
    codec = converter.payload_codec
    if codec is None or (isinstance(codec, EncryptionCodec) and keys and not codec.keys):
        changes["payload_codec"] = EncryptionCodec(keys)
        if keys.current_id is not None and converter.failure_converter_class is DefaultFailureConverter:
            changes["failure_converter_class"] = EncodedFailureConverter
    elif keys and not isinstance(codec, EncryptionCodec):
        raise SettingsError(
            f"the client has a payload codec of its own ({type(codec).__name__}), and TENXGRAPH_ENCRYPTION_KEYS is "
            "set; unset it, or pass keys=EncryptionKeys() to our plugin and use EncryptionCodec within your codec, "
            "where you want it"
        )
    return dataclasses.replace(converter, **changes) if changes else converter  # type: ignore[arg-type]


class WirePlugin(SimplePlugin):
    """Makes a Temporal client speak our wire models, and its runs continue the trace of the caller's span.

    For clients; ``TenxGraphPlugin`` is for workers.

    Args:
        keys: What payloads are encrypted with; by default what ``TENXGRAPH_ENCRYPTION_KEYS`` names. Pass
            ``EncryptionKeys()`` for none.

    Raises:
        SettingsError: A setting is wrong.
    """

    def __init__(self, *, keys: EncryptionKeys | None = None) -> None:
        keys = Settings.from_env().keys if keys is None else keys
        converter = partial(with_our_models, keys=keys)
        super().__init__("tenxgraph_temporal.Wire", data_converter=converter, interceptors=[CallersTrace()])


async def connect(settings: Settings | None = None, *, runtime: Runtime | None = None) -> Client:
    """A client for the server that the environment names (``localhost:7233`` by default).

    Args:
        settings: Say how payloads are encrypted; read from the environment by default.
        runtime: Temporal's, if it is not to be the SDK's default one.

    Raises:
        SettingsError: The configuration is wrong, or the server cannot be reached; names the address.
    """
    plugin = WirePlugin(keys=settings.keys if settings else None)
    try:
        config = ClientConfig.load_client_connect_config()
    except Exception as exc:
        # What follows the first line quotes the file, where an API key may stand.
        problem = str(exc).partition("\n")[0]
        raise SettingsError(f"Temporal's environment configuration cannot be read: {problem}") from None
    address = config.setdefault("target_host", "localhost:7233")
    try:
        return await Client.connect(**config, plugins=[plugin], runtime=runtime)
    except (RuntimeError, ValueError, OSError) as exc:
        remedy = "set TEMPORAL_ADDRESS, or start one with: tenxgraph-temporal dev"
        if config.get("tls"):
            remedy = "check TEMPORAL_ADDRESS, the certificates that TEMPORAL_TLS_* name, and TEMPORAL_API_KEY"
        raise SettingsError(
            f"no Temporal server at {address} (namespace {config.get('namespace', 'default')!r}): {exc}; {remedy}"
        ) from exc
