"""Writes ``settings.md`` from the settings model: ``python docs/settings_reference.py``."""

from __future__ import annotations

import ast
import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from tenxgraph_temporal.runtime.settings import PREFIX, Settings

PAGE = Path(__file__).with_name("settings.md")

_HEAD = """\
# Settings

<!-- Written by docs/settings_reference.py; a test compares it with the model. -->

A worker, and each command of `tenxgraph-temporal`, reads these variables once, when it starts. A variable with this
prefix that is no setting, and a value that does not fit, end the program with `SETTINGS_001` and the list of settings.

Durations are ISO 8601: `PT30S`, `PT1M30S`. Booleans are `true` or `false`.

| variable | default | meaning |
| --- | --- | --- |
"""

_TAIL = """
## Temporal

The connection to Temporal comes from Temporal's own environment configuration: `TEMPORAL_ADDRESS` (default
`localhost:7233`), `TEMPORAL_NAMESPACE` (default `default`), `TEMPORAL_API_KEY`, `TEMPORAL_TLS`,
`TEMPORAL_TLS_CLIENT_CERT_PATH`, `TEMPORAL_TLS_CLIENT_KEY_PATH`, `TEMPORAL_TLS_SERVER_CA_CERT_PATH`,
`TEMPORAL_TLS_SERVER_NAME`, or a profile in a TOML file that `TEMPORAL_CONFIG_FILE` and `TEMPORAL_PROFILE` name. See
[Temporal's reference](https://docs.temporal.io/develop/environment-configuration).

## OpenTelemetry

Exporters of metrics and traces come from OpenTelemetry's own variables, `OTEL_...`: see [telemetry](telemetry.md).

## Per run, node and tool

Deadlines, retries and the recursion limit are no settings of the worker. They are the run's `config`, or options of a
node or tool: see [authoring](authoring.md#deadlines-and-retries).
"""


def render() -> str:
    """The page."""
    documents = _documents()
    rows = [
        f"| `{PREFIX}{name.upper()}` | {_default(field)} | {documents.get(name, '')}{_bounds(field)} |"
        for name, field in Settings.model_fields.items()
    ]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL


def _documents() -> dict[str, str]:
    """The text below each field."""
    (model,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(model, ast.ClassDef)
    found = {}
    for field, text in zip(model.body, model.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            words = " ".join(str(ast.literal_eval(text.value)).split())
            found[field.target.id] = words.replace("``", "`").replace("|", "\\|")
    return found


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value == "":
        return ""
    if isinstance(value, timedelta):
        return f"`PT{value.total_seconds():g}S`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _bounds(field: FieldInfo) -> str:
    lowest = [item.ge for item in field.metadata if hasattr(item, "ge")]
    return f" At least {lowest[0]}." if lowest else ""


if __name__ == "__main__":
    PAGE.write_text(render())
