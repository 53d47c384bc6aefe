"""The worker's settings: one frozen object, read once from the environment.

Temporal's own settings (address, namespace, TLS, API key) come from Temporal's environment configuration:
``TEMPORAL_ADDRESS``, ``TEMPORAL_NAMESPACE``, ``TEMPORAL_API_KEY``, ``TEMPORAL_TLS_*``, or its TOML profiles.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from .encryption_keys import EncryptionKeys
from .errors import SettingsError
from .faults import Faults

PREFIX = "TENXGRAPH_"


class Settings(BaseModel):
    """Each field is read from ``TENXGRAPH_<NAME>``; durations are in seconds or ISO 8601."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    database_url: SecretStr = SecretStr("")
    """``postgresql://...``, ``sqlite:///path``, or ``memory:`` (one process, for trying out)."""
    database_schema: str = "public"
    """Schema of the tables in Postgres."""
    database_pool_size: int = Field(default=20, ge=1)
    """Connections to Postgres per worker process."""
    database_statement_cache: int = Field(default=100, ge=0)
    """Prepared statements per connection; 0 behind pgbouncer in transaction mode."""
    redis_url: SecretStr = SecretStr("")
    """A Redis or Valkey that caches thread states for all workers, e.g. ``redis://localhost:6379/0``. Optional."""
    encryption_keys: SecretStr = SecretStr("")
    """``id:base64,id2:base64``, AES-256 keys: the first encrypts what crosses Temporal, all decrypt."""
    codec_server_token: SecretStr = SecretStr("")
    """What callers of ``tenxgraph-temporal codec-server`` must send as ``Authorization: Bearer ...``."""
    task_queue: str = "tenxgraph"
    """The queue that the worker serves."""
    deployment_name: str = ""
    """Temporal worker deployment of the worker; with ``build_id``, runs stay with the build that they began on."""
    build_id: str = ""
    """What the worker runs, e.g. a release or a commit; needs ``deployment_name``."""
    versioning_behavior: Literal["pinned", "auto_upgrade"] = "pinned"
    """``pinned`` runs end on the build that they began on, ``auto_upgrade`` ones go on with the current one."""
    state_history_limit: int = Field(default=20, ge=0)
    """Kept versions per thread; 0 keeps all."""
    enforce_user_isolation: bool = True
    """Refuse callers whose ``user_id`` is not the thread's."""
    state_cache_bytes: int = Field(default=256 * 1024 * 1024, ge=0)
    """Bound of the in-process cache of thread states."""
    max_concurrent_activities: int = Field(default=100, ge=1)
    """Nodes and tool calls that one worker process runs at once."""
    graceful_shutdown_timeout: timedelta = timedelta(seconds=30)
    """How long running nodes and tools may go on after SIGTERM."""
    cancel_grace: timedelta = timedelta(seconds=5)
    """How long cancelled code may take to clean up before its attempt ends without it."""
    health_port: int = Field(default=0, ge=0, le=65535)
    """Serve ``/healthz`` and ``/readyz`` on this port; 0 serves none."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Serve metrics for Prometheus on this port, at ``/metrics``; 0 serves none."""
    log_format: Literal["text", "json"] = "text"
    """How a worker logs to stderr: ``text`` or ``json``."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    """The least that a worker logs: ``DEBUG``, ``INFO``, ``WARNING``, ``ERROR`` or ``CRITICAL``."""
    trace_content: bool = False
    """Put prompts, replies, arguments, results and error texts on spans."""
    ledger: bool = True
    """False switches the tool ledger off: only to show what happens without it."""
    faults: str = ""
    """Fault points for tests; see ``runtime/faults.py``."""

    @field_validator("graceful_shutdown_timeout", "cancel_grace", mode="before")
    @classmethod
    def _seconds(cls, value: object) -> object:
        try:
            return float(value) if isinstance(value, str) else value
        except ValueError:
            return value  # ISO 8601

    @field_validator("encryption_keys")
    @classmethod
    def _keys_parse(cls, value: SecretStr) -> SecretStr:
        EncryptionKeys.parse(value.get_secret_value())
        return value

    @field_validator("faults")
    @classmethod
    def _faults_parse(cls, value: str) -> str:
        Faults.parse(value)
        return value

    @model_validator(mode="after")
    def _versioned_or_not(self) -> Settings:
        if bool(self.deployment_name) != bool(self.build_id):
            raise ValueError(f"{PREFIX}DEPLOYMENT_NAME and {PREFIX}BUILD_ID are set together, or neither")
        return self

    @property
    def keys(self) -> EncryptionKeys:
        """``encryption_keys``, parsed."""
        return EncryptionKeys.parse(self.encryption_keys.get_secret_value())

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read ``TENXGRAPH_*``.

        Raises:
            SettingsError: A value is wrong, or a variable has our prefix and is no setting; names it.
        """
        environ = os.environ if environ is None else environ
        given = {name.removeprefix(PREFIX).lower(): value for name, value in environ.items() if name.startswith(PREFIX)}
        try:
            return cls.model_validate(given)
        except ValidationError as exc:
            problems = "; ".join(
                f"{_variable('_'.join(map(str, error['loc'])))}: {error['msg']}" if error["loc"] else error["msg"]
                for error in exc.errors()
            )
            raise SettingsError(f"{problems}; the settings are {', '.join(map(_variable, cls.model_fields))}") from None


def _variable(field: str) -> str:
    return PREFIX + field.upper()
