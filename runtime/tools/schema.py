"""What a model may pass to a tool: JSON Schema from the function's signature and docstring, and validation."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Optional, Required, Union, get_args, get_origin, get_type_hints

import docstring_parser
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from ..errors import GraphDefinitionError
from ..state import AgentState

Injected = Literal["state", "config", "tool_call_id", "context"]

_INJECTED = frozenset(get_args(Injected))
_MAPPINGS = (dict, Mapping, MutableMapping)
_NONE: Any = object()  # no annotation; None is one
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_PROBLEMS = 20
_MAX_SHOWN_CHARS = 80


class ArgumentError(ValueError):
    """What is wrong with a call's arguments, said to the model."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """How a tool is offered to a model and called.

    ``parameters`` is a self-contained JSON Schema of type object. ``injected`` maps the parameters that the
    runtime fills in, and that a model neither sees nor may set, to what they are given; ``state_type`` is the
    class that the state parameter names, if it names one.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    injected: Mapping[str, Injected]
    state_type: type[AgentState] | None
    is_async: bool
    _validator: TypeAdapter[Any] = field(repr=False)
    _reserved: frozenset[str] = field(repr=False)

    def bind(self, arguments: object) -> dict[str, Any]:
        """The keyword arguments for the model's part of the parameters, validated and converted.

        An argument that is absent stays absent: the function's own default applies.

        Raises:
            ArgumentError: Names every argument that is wrong, missing or unknown.
        """
        if not isinstance(arguments, Mapping):
            raise ArgumentError(f"a JSON object is expected, not {_shown(arguments)}")
        # Where **kwargs takes any name, it still must not take one that is the runtime's or the author's.
        problems = [f"unknown argument: {name}" for name in arguments if name in self._reserved]
        offered = {name: value for name, value in arguments.items() if name not in self._reserved}
        bound: dict[str, Any] = {}
        try:
            bound = dict(self._validator.validate_python(offered))
        except ValidationError as exc:
            problems = [*map(_problem, exc.errors(include_url=False)), *problems]
        except Exception as exc:  # a validator of the author's: its error is about these arguments
            problems.append(f"the arguments cannot be validated: {type(exc).__name__}: {exc}")
        if problems:
            more = len(problems) - _MAX_PROBLEMS
            raise ArgumentError("; ".join(problems[:_MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else ""))
        return bound

    def openai(self) -> dict[str, Any]:
        """The tool in OpenAI's function-calling form; a copy."""
        parameters = copy.deepcopy(self.parameters)
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }


def tool_schema(function: Callable[..., Any], *, name: str | None = None, description: str | None = None) -> ToolSchema:
    """Read a function's signature, annotations and docstring.

    The runtime fills in ``state`` (without annotation, or an ``AgentState``), ``config`` (or a dict),
    ``tool_call_id`` (or a str), ``context`` (without annotation) and whatever is annotated with ``ToolContext``;
    all others are the model's. What a ``functools.partial`` sets by keyword is fixed and not shown to the model.

    Raises:
        GraphDefinitionError: The signature cannot be offered to a model; names tool and parameter.
    """
    plain, fixed = _behind_partials(function)
    name = str(getattr(plain, "__name__", type(plain).__name__)) if name is None else name
    if not _NAME.fullmatch(name):
        raise GraphDefinitionError(
            f"tool {name!r}: a model can call only names of up to 64 letters, digits, _ and -; give it a name with "
            "@tool(name=...)"
        )
    if inspect.isasyncgenfunction(inspect.unwrap(plain)):
        raise GraphDefinitionError(f"tool {name!r} is an async generator, but a call has one result; return a list")
    summary, texts = _documentation(plain)
    fields: dict[str, Any] = {}
    injected: dict[str, Injected] = {}
    state_type: type[AgentState] | None = None
    extra: Any = _NONE
    for parameter, annotation in _parameters(function, plain, name):
        if parameter.name in fixed:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = Any if annotation is _NONE else annotation
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            kind = "is *args" if parameter.kind is parameter.VAR_POSITIONAL else "is positional-only"
            raise GraphDefinitionError(
                f"tool {name!r}: parameter {parameter.name!r} {kind}, but a model passes arguments by name; make it "
                "an ordinary parameter"
            )
        elif (source := _injection(parameter.name, annotation)) is not None:
            injected[parameter.name] = source
            if source == "state" and annotation is not _NONE:
                state_type = _options(annotation)[0]
        else:
            fields[parameter.name] = _field(name, parameter, annotation, texts.get(parameter.name))
    validator, parameters = _validator(name, fields, extra)
    return ToolSchema(
        name=name,
        description=summary if description is None else description,
        parameters=parameters,
        injected=injected,
        state_type=state_type,
        is_async=_is_async(plain),
        _validator=validator,
        _reserved=fixed | injected.keys(),
    )


def _behind_partials(function: Callable[..., Any]) -> tuple[Callable[..., Any], frozenset[str]]:
    """The function itself, and the parameters that partials have set by keyword."""
    fixed: set[str] = set()
    while isinstance(function, functools.partial):
        fixed |= function.keywords.keys()
        function = function.func
    return function, frozenset(fixed)


def _code_of(plain: Callable[..., Any]) -> Callable[..., Any]:
    """What has the annotations: the function, or the method that runs when a class or an object is called."""
    if inspect.isclass(plain):
        return plain.__init__
    if inspect.isroutine(plain) or hasattr(plain, "__wrapped__"):
        return plain
    return type(plain).__call__


def _is_async(plain: Callable[..., Any]) -> bool:
    # A plain wrapper of an async function is taken to return that function's coroutine.
    candidates = (plain, getattr(plain, "__call__", None), inspect.unwrap(plain))  # noqa: B004  # the method itself
    return any(map(inspect.iscoroutinefunction, candidates))


def _documentation(plain: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The docstring without its sections, and the parameters' descriptions."""
    code = _code_of(plain)
    text = inspect.getdoc(plain) if code is plain else None if inspect.isclass(plain) else code.__doc__
    if not text and code is not plain:
        text = plain.__doc__
    text = inspect.cleandoc(text or "")
    try:
        documented = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text, {}
    summary = "\n\n".join(filter(None, (documented.short_description, documented.long_description)))
    return summary, {item.arg_name: item.description for item in documented.params if item.description}


def _parameters(
    function: Callable[..., Any], plain: Callable[..., Any], name: str
) -> Iterator[tuple[inspect.Parameter, Any]]:
    """The parameters with their annotations, ``_NONE`` where there is none."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as exc:
        raise GraphDefinitionError(
            f"tool {name!r}: its signature cannot be read ({exc}); wrap it in a function of your own"
        ) from exc
    try:
        hints = get_type_hints(inspect.unwrap(_code_of(plain)), include_extras=True)
    except Exception as exc:
        raise GraphDefinitionError(
            f"tool {name!r}: its annotations cannot be resolved ({exc}); import what they name at module level, "
            "outside `if TYPE_CHECKING`"
        ) from exc
    for parameter in signature.parameters.values():
        annotation = hints.get(parameter.name, parameter.annotation)  # a __signature__ has annotations of its own
        unknown = annotation is parameter.empty or isinstance(annotation, str)
        yield parameter, _NONE if unknown else annotation


def _options(annotation: Any) -> list[Any]:
    """What a value may be: the members of a union, without ``None`` and without ``Annotated``'s metadata."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _options(annotation.__origin__)
    if origin in (Union, UnionType):
        return [option for arg in get_args(annotation) if arg is not NoneType for option in _options(arg)]
    return [annotation]


def _injection(name: str, annotation: Any) -> Injected | None:
    if annotation is _NONE:
        return name if name in _INJECTED else None  # type: ignore[return-value]  # one of them
    options = _options(annotation)
    for option in options:
        marker = getattr(option, "__tenx_injected__", None)  # ToolContext and its like
        if isinstance(marker, str) and marker in _INJECTED:
            return marker  # type: ignore[return-value]  # one of them
    if name == "state" and all(isinstance(option, type) and issubclass(option, AgentState) for option in options):
        return "state"
    if name == "config" and all((get_origin(option) or option) in _MAPPINGS for option in options):
        return "config"
    return "tool_call_id" if name == "tool_call_id" and options == [str] else None


def _field(tool: str, parameter: inspect.Parameter, annotation: Any, text: str | None) -> Any:
    """The parameter as a TypedDict's field."""
    default = parameter.default
    if isinstance(default, FieldInfo):
        raise GraphDefinitionError(
            f"tool {tool!r}: parameter {parameter.name!r} has Field(...) for a default, which the function would get "
            "as a value; write Annotated[<type>, Field(...)] and a plain default"
        )
    if annotation is _NONE:
        annotation = Any
    elif default is None:
        annotation = _or_none(annotation)
    if text:
        annotation = Annotated[annotation, Field(description=text)]
    if default is parameter.empty:
        return Required[annotation]
    try:
        shown = to_jsonable_python(default)
        json.dumps(shown, allow_nan=False)
    except (ValueError, TypeError):  # what JSON cannot say is not shown
        return NotRequired[annotation]
    return NotRequired[Annotated[annotation, Field(json_schema_extra={"default": shown})]]


def _or_none(annotation: Any) -> Any:
    """``order: str = None`` means an optional string."""
    if get_origin(annotation) is Annotated:
        return Annotated[Optional[annotation.__origin__], *annotation.__metadata__]  # noqa: UP045  # made at run time
    return Optional[annotation]  # noqa: UP045


class _Untitled(GenerateJsonSchema):
    """Titles only repeat the names, and a model is charged for them."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _validator(tool: str, fields: dict[str, Any], extra: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    # A TypedDict, not a model: a parameter may then have any name, `copy` and `json` included.
    closed: dict[str, Any] = {} if extra in (_NONE, Any) else {"extra_items": extra}
    try:
        arguments = TypedDict(tool, fields, **closed)  # type: ignore[misc]  # made at run time
        arguments.__pydantic_config__ = ConfigDict(extra="forbid" if extra is _NONE else "allow")  # type: ignore[attr-defined]
        adapter: TypeAdapter[Any] = TypeAdapter(arguments)
        parameters = {"type": "object", "properties": {}, **adapter.json_schema(schema_generator=_Untitled)}
    except (PydanticUserError, TypeError) as exc:
        reason = str(exc).split("\n")[0]
        raise GraphDefinitionError(
            f"tool {tool!r}: {_culprit(fields)} cannot be described to a model: {reason} Use plain data, pydantic "
            "models or dataclasses"
        ) from exc
    parameters.pop("title", None)
    return adapter, parameters


def _culprit(fields: dict[str, Any]) -> str:
    for name, annotation in fields.items():
        try:
            TypeAdapter(get_args(annotation)[0]).json_schema()
        except (PydanticUserError, TypeError):
            return f"parameter {name!r}"
    return "a parameter"


def _problem(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"missing argument: {where}"
    if error["type"] == "extra_forbidden":
        return f"unknown argument: {where}"
    return f"{where}: {error['msg']} (got {_shown(error['input'])})"


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, default=repr, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        text = repr(type(value))
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."
