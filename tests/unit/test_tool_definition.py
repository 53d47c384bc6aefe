"""Which functions may be tools, and under which names."""

import functools
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import Field

from tenxgraph_temporal.runtime.errors import GraphDefinitionError
from tenxgraph_temporal.runtime.tools.schema import ArgumentError, tool_schema

from ..support.chat import look_up

if TYPE_CHECKING:
    from collections import OrderedDict


class Shop:
    """A shop."""

    def look(self, item: str) -> str:
        """Look at an item."""
        return item

    @classmethod
    async def count(cls, item: str) -> int:
        """Count an item."""
        return len(item)

    async def __call__(self, item: str, tool_call_id: str) -> str:
        """Buy an item.

        Args:
            item: its name
        """
        return item


def _logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


async def _slow(item: str, token: str = "") -> str:
    """Wait for an item."""
    return item + token


@pytest.mark.parametrize(
    ("function", "name", "description", "is_async"),
    [
        (Shop().look, "look", "Look at an item.", False),
        (Shop.count, "count", "Count an item.", True),
        (Shop(), "Shop", "Buy an item.", True),
        (functools.partial(Shop()), "Shop", "Buy an item.", True),
        (functools.partial(_slow, token="secret"), "_slow", "Wait for an item.", True),
        (functools.partial(functools.partial(_slow, token="a"), token="b"), "_slow", "Wait for an item.", True),
        (_logged(Shop().look), "look", "Look at an item.", False),
        (_logged(functools.wraps(_slow)(functools.partial(_slow, token="x"))), "_slow", "Wait for an item.", True),
        (functools.lru_cache(Shop().look), "look", "Look at an item.", False),
    ],
)
async def test_callables_of_all_kinds(
    function: Callable[..., Any], name: str, description: str, is_async: bool
) -> None:
    schema = tool_schema(function)
    assert (schema.name, schema.description, schema.is_async) == (name, description, is_async)
    assert schema.parameters["properties"]["item"]["type"] == "string"
    result = function(**schema.bind({"item": "tea"}), **{key: "c1" for key in schema.injected})
    assert str(await result if isinstance(result, Awaitable) else result).startswith(("tea", "3"))


def test_what_a_partial_sets_is_neither_shown_nor_changeable() -> None:
    schema = tool_schema(functools.partial(_slow, token="secret"))
    assert "secret" not in json.dumps(schema.openai())
    with pytest.raises(ArgumentError, match="unknown argument: token"):
        schema.bind({"item": "a", "token": "mine"})
    assert tool_schema(functools.partial(_slow, "tea")).parameters.get("required") is None


def test_name_and_description_can_be_given() -> None:
    schema = tool_schema(lambda a: a, name="echo", description="Say it again.")
    assert (schema.name, schema.description) == ("echo", "Say it again.")


def _wrong() -> list[Any]:
    def positional_only(item: str, /) -> None: ...

    def var_positional(*items: str) -> None: ...

    def unresolved(item: "OrderedDict[str, int]") -> None: ...

    def opaque(item: Shop) -> None: ...

    def function_typed(item: Callable[[], int]) -> None: ...

    def field_default(item: int = Field(default=1)) -> None: ...

    async def generator(item: str):  # type: ignore[no-untyped-def]
        yield item

    return [
        (positional_only, "parameter 'item' is positional-only"),
        (var_positional, r"parameter 'items' is \*args"),
        (unresolved, "OrderedDict.*import what they name at module level"),
        (opaque, "parameter 'item' cannot be described to a model"),
        (function_typed, "parameter 'item' cannot be described to a model"),
        (field_default, r"parameter 'item' .*Annotated\[<type>, Field\(...\)\]"),
        (generator, "async generator"),
    ]


@pytest.mark.parametrize(("function", "text"), _wrong(), ids=lambda item: getattr(item, "__name__", ""))
def test_what_a_model_cannot_call_is_refused_with_tool_parameter_and_remedy(
    function: Callable[..., Any], text: str
) -> None:
    with pytest.raises(GraphDefinitionError, match=text) as caught:
        tool_schema(function)
    assert repr(function.__name__) in str(caught.value)
    assert "errors.pydantic.dev" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "ünï", "x" * 65, "tool\n", "a.b"])
def test_names_that_no_provider_takes_are_refused(name: str) -> None:
    with pytest.raises(GraphDefinitionError, match="a model can call only names of up to 64"):
        tool_schema(look_up, name=name)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(GraphDefinitionError, match=r"'<lambda>'.*give it a name"):
        tool_schema(lambda a: a)
