"""What a model may pass to a tool: JSON Schema from the function's signature and docstring, and validation."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, Required, get_origin, get_type_hints

from docstring_parser import parse as parse_docstring
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from typing_extensions import TypedDict

from ..errors import GraphDefinitionError
from ..state import AgentState
from ..state.encoding import to_jsonable

Injected = Literal["state", "config", "tool_call_id", "context"]

_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")


class ArgumentError(ValueError):
    """What is wrong with a call's arguments, said to the model."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """How a tool is offered to a model and called.

    ``parameters`` is a self-contained JSON Schema of type object; ``injected`` maps the parameters that the
    runtime fills in, and that a model neither sees nor may set, to what they are given.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    injected: Mapping[str, Injected]
    is_async: bool
    _validator: TypeAdapter[Any] = field(repr=False)

    def bind(self, arguments: object) -> dict[str, Any]:
        """The keyword arguments for the model's part of the parameters, validated and converted.

        Raises:
            ArgumentError: Names every argument that is wrong, missing or unknown.
        """
        if not isinstance(arguments, Mapping):
            raise ArgumentError(f"a JSON object is expected, not {_shown(arguments)}")
        try:
            return dict(self._validator.validate_python(dict(arguments)))
        except ValidationError as exc:
            raise ArgumentError("; ".join(map(_problem, exc.errors(include_url=False)))) from None

    def openai(self) -> dict[str, Any]:
        """The tool in OpenAI's function-calling form."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


def tool_schema(function: Callable[..., Any], *, name: str | None = None, description: str | None = None) -> ToolSchema:
    """Read a function's signature, annotations and docstring.

    Raises:
        GraphDefinitionError: The signature cannot be offered to a model; names tool and parameter.
    """
    name = name or str(getattr(_function_of(function), "__name__", type(function).__name__))
    if not _NAME.match(name):
        raise GraphDefinitionError(
            f"tool {name!r}: a model can call only names of up to 64 letters, digits, _ and -; use @tool(name=...)"
        )
    documented = parse_docstring(inspect.getdoc(_function_of(function)) or "")
    texts = {item.arg_name: item.description for item in documented.params if item.description}
    fields: dict[str, Any] = {}
    injected: dict[str, Injected] = {}
    extra: Literal["forbid", "allow"] = "forbid"
    hints = _hints(function, name)
    for parameter in _parameters(function, name):
        annotation = hints.get(parameter.name, Any)
        source = _injection(parameter.name, annotation, parameter.name in hints)
        if source is not None:
            injected[parameter.name] = source
        elif parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise GraphDefinitionError(
                f"tool {name!r}: a model passes arguments by name, which {parameter.name!r} does not accept"
            )
        else:
            fields[parameter.name] = _field(parameter, annotation, texts.get(parameter.name))
    validator = _validator(name, fields, extra)
    parameters = {"type": "object", "properties": {}, **validator.json_schema()}
    parameters.pop("title", None)
    parameters["additionalProperties"] = extra == "allow"
    summary = "\n\n".join(filter(None, (documented.short_description, documented.long_description)))
    return ToolSchema(name, description or summary, parameters, injected, _is_async(function), validator)


def _function_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The plain function behind partials, wrappers and callable objects: it has the name and the docstring."""
    while isinstance(function, functools.partial):
        function = function.func
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        return function if hasattr(function, "__name__") else type(function).__call__
    return function


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # the method itself is what is asked about
    )


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as exc:
        raise GraphDefinitionError(f"tool {name!r}: its signature cannot be read: {exc}") from exc


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    target = _function_of(function)
    try:
        hints = get_type_hints(inspect.unwrap(target), include_extras=True)
    except Exception as exc:
        raise GraphDefinitionError(
            f"tool {name!r}: its annotations cannot be resolved ({exc}); import what they name at module level, "
            "outside `if TYPE_CHECKING`"
        ) from exc
    hints.pop("return", None)
    return hints


def _injection(name: str, annotation: Any, annotated: bool) -> Injected | None:
    if getattr(annotation, "__tenx_injected__", None) == "context":
        return "context"
    if name == "state" and (not annotated or _is_state(annotation)):
        return "state"
    plain = get_origin(annotation) or annotation
    if name == "config" and (not annotated or plain in (dict, Mapping)):
        return "config"
    if name == "tool_call_id" and (not annotated or annotation is str):
        return "tool_call_id"
    if name == "context" and not annotated:
        return "context"
    return None


def _is_state(annotation: Any) -> bool:
    options = getattr(annotation, "__args__", None) or (annotation,)
    return any(isinstance(option, type) and issubclass(option, AgentState) for option in options)


def _field(parameter: inspect.Parameter, annotation: Any, text: str | None) -> Any:
    if text:
        annotation = Annotated[annotation, Field(description=text)]
    if parameter.default is parameter.empty:
        return Required[annotation]
    try:
        default = to_jsonable(parameter.default)
    except Exception:  # a default that JSON cannot show is simply not shown
        return NotRequired[annotation]
    return NotRequired[Annotated[annotation, Field(json_schema_extra={"default": default})]]


def _validator(name: str, fields: dict[str, Any], extra: Literal["forbid", "allow"]) -> TypeAdapter[Any]:
    # A TypedDict, not a model: a parameter may then have any name, `copy` and `json` included.
    arguments = TypedDict(name, fields)  # type: ignore[misc]  # made at run time
    arguments.__pydantic_config__ = ConfigDict(extra=extra)  # type: ignore[attr-defined]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(arguments)
        adapter.json_schema()
    except (PydanticUserError, TypeError) as exc:
        raise GraphDefinitionError(
            f"tool {name!r}: a parameter's type cannot be described to a model: {exc}; use plain data, pydantic "
            "models or dataclasses"
        ) from exc
    return adapter


def _problem(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"missing argument: {where}"
    if error["type"] == "extra_forbidden":
        return f"unknown argument: {where}"
    return f"{where}: {error['msg']} (got {_shown(error['input'])})"


def _shown(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."
