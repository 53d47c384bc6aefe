"""What a model is told about a function, and what of a model's arguments reaches it."""

import copy
import dataclasses
import json
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional
from uuid import UUID

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, field_validator

from tenxgraph_temporal.runtime.state import AgentState
from tenxgraph_temporal.runtime.tools.context import RunContext, ToolContext
from tenxgraph_temporal.runtime.tools.schema import ArgumentError, tool_schema

if TYPE_CHECKING:
    pass


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Address(BaseModel):
    street: str
    number: int = 1


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class ShopState(AgentState):
    cart: list[str] = []


def charge_card(order_id: str, amount_cents: Annotated[int, Field(ge=1)], currency: str = "usd") -> str:
    """Charge the saved card.

    Only once per order.

    Args:
        order_id: The order to pay,
            as shown to the customer.
        amount_cents: Cents, not whole units.

    Returns:
        The receipt.
    """
    return f"{order_id} {amount_cents} {currency}"


def test_openai_form_is_what_the_signature_and_the_docstring_say() -> None:
    schema = tool_schema(charge_card)
    assert schema.openai() == {
        "type": "function",
        "function": {
            "name": "charge_card",
            "description": "Charge the saved card.\n\nOnly once per order.",
            "parameters": {
                "type": "object",
                "properties": {
                    "order_id": {"type": "string", "description": "The order to pay,\nas shown to the customer."},
                    "amount_cents": {"type": "integer", "minimum": 1, "description": "Cents, not whole units."},
                    "currency": {"type": "string", "default": "usd"},
                },
                "required": ["order_id", "amount_cents"],
                "additionalProperties": False,
            },
        },
    }
    before = copy.deepcopy(schema.parameters)
    schema.openai()["function"]["parameters"]["properties"].clear()
    assert schema.parameters == before, "what a caller does to its copy stays there"


@pytest.mark.parametrize(
    "docstring",
    [
        "Sum up.\n\nArgs:\n    a: the first\n",
        "Sum up.\n\n:param a: the first\n:returns: x\n",
        "Sum up.\n\nParameters\n----------\na : int\n    the first\n",
        "Sum up.\n\n@param a: the first\n",
    ],
    ids=["google", "sphinx", "numpy", "epydoc"],
)
def test_every_docstring_style_is_read(docstring: str) -> None:
    def add(a: int) -> int:
        return a

    add.__doc__ = docstring
    schema = tool_schema(add)
    assert schema.description == "Sum up."
    assert schema.parameters["properties"]["a"]["description"] == "the first"


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (int, "5", 5),
        (float, 2, 2.0),
        (bool, "true", True),
        (str | None, None, None),
        (Optional[int], "3", 3),  # noqa: UP045
        (int | str, "x", "x"),
        (list[int], ["1", 2], [1, 2]),
        (dict[str, int], {"a": "1"}, {"a": 1}),
        (set[int], [1, 1], {1}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (Literal["a", "b"], "b", "b"),
        (Colour, "green", Colour.GREEN),
        (datetime, "2026-12-01T10:00:00Z", datetime(2026, 12, 1, 10, tzinfo=UTC)),
        (date, "2026-12-01", date(2026, 12, 1)),
        (Decimal, "0.10", Decimal("0.10")),
        (UUID, "6f1d7f0e-5f0b-4f4e-9d53-3e3a7f3f5a52", UUID("6f1d7f0e-5f0b-4f4e-9d53-3e3a7f3f5a52")),
        (Address, {"street": "Main", "number": "7"}, Address(street="Main", number=7)),
        (list[Address], [{"street": "Main"}], [Address(street="Main")]),
        (Point, {"x": "1"}, Point(1)),
        (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree(name="a", children=[Tree(name="b")])),
        (Annotated[int, Field(ge=1)], 1, 1),
        (Any, {"any": [1]}, {"any": [1]}),
    ],
)
def test_arguments_arrive_as_the_annotated_type(annotation: Any, given: Any, expected: Any) -> None:
    def tool(value):  # type: ignore[no-untyped-def]
        ...

    tool.__annotations__["value"] = annotation
    schema = tool_schema(tool)
    Draft202012Validator.check_schema(schema.parameters)
    json.dumps(schema.parameters, allow_nan=False)
    bound = schema.bind({"value": given})["value"]
    assert bound == expected
    assert type(bound) is type(expected)


@pytest.mark.parametrize(
    "parameter_name", ["copy", "json", "schema", "model_config", "model_fields", "_private", "validate", "class_"]
)
def test_a_parameter_may_have_any_name(parameter_name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def tool({parameter_name}: int): ...", namespace)
    schema = tool_schema(namespace["tool"])
    assert schema.parameters["required"] == [parameter_name]
    assert schema.bind({parameter_name: "1"}) == {parameter_name: 1}


def test_unannotated_parameters_take_anything() -> None:
    def tool(a, b=1):  # type: ignore[no-untyped-def]
        ...

    schema = tool_schema(tool)
    assert schema.parameters["properties"] == {"a": {}, "b": {"default": 1}}
    assert schema.bind({"a": [None, {"x": 1}]}) == {"a": [None, {"x": 1}]}


def test_defaults_are_shown_where_json_can_and_left_to_the_function() -> None:
    marker = object()

    def tool(
        colour: Colour = Colour.RED,
        address: Address = Address(street="Main"),  # noqa: B008
        since: date = date(2026, 1, 1),
        anything: object = marker,
        limit: float = float("inf"),
        order: str = None,  # type: ignore[assignment]  # noqa: RUF013
        amount: Annotated[int, Field(ge=1, description="cents")] = None,  # type: ignore[assignment]  # noqa: RUF013
    ) -> None: ...

    schema = tool_schema(tool)
    shown = {name: item.get("default", "-") for name, item in schema.parameters["properties"].items()}
    assert shown == {
        "colour": "red",
        "address": {"street": "Main", "number": 1},
        "since": "2026-01-01",
        "anything": "-",
        "limit": "-",
        "order": None,
        "amount": None,
    }
    assert schema.parameters["properties"]["amount"]["description"] == "cents"
    assert schema.bind({}) == {}
    assert schema.bind({"order": None, "amount": None}) == {"order": None, "amount": None}
    with pytest.raises(ArgumentError, match="amount: Input should be greater than or equal to 1"):
        schema.bind({"amount": 0})


def test_all_problems_are_named_in_one_readable_text() -> None:
    with pytest.raises(ArgumentError) as caught:
        tool_schema(charge_card).bind({"amount_cents": "ten", "colour": "red"})
    assert str(caught.value) == (
        "missing argument: order_id; amount_cents: Input should be a valid integer, unable to parse string as an "
        'integer (got "ten"); unknown argument: colour'
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (None, "a JSON object is expected, not null"),
        ([1], "a JSON object is expected, not [1]"),
        ("{}", 'a JSON object is expected, not "{}"'),
        (3, "a JSON object is expected, not 3"),
    ],
)
def test_arguments_must_be_an_object(arguments: object, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        tool_schema(charge_card).bind(arguments)
    assert str(caught.value) == text


def test_problems_deep_inside_say_where_and_stay_bounded() -> None:
    def tool(addresses: list[Address]) -> None: ...

    schema = tool_schema(tool)
    with pytest.raises(ArgumentError) as caught:
        schema.bind({"addresses": [{"street": "a"}, {"number": "x"}]})
    assert "missing argument: addresses.1.street" in str(caught.value)
    assert 'addresses.1.number: Input should be a valid integer, unable to parse string as an integer (got "x")' in str(
        caught.value
    )
    with pytest.raises(ArgumentError) as caught:
        schema.bind({"addresses": [{"street": ["long" * 1000]} for _ in range(500)]})
    assert len(str(caught.value)) < 4000
    assert str(caught.value).endswith("; and 480 more")
    assert "errors.pydantic.dev" not in str(caught.value)


def test_a_validator_that_breaks_is_about_the_arguments() -> None:
    class Picky(BaseModel):
        value: int

        @field_validator("value")
        @classmethod
        def look_up(cls, value: int) -> int:
            return {1: 1}[value]

    def tool(picky: Picky) -> None: ...

    with pytest.raises(ArgumentError, match="cannot be validated: KeyError: 2"):
        tool_schema(tool).bind({"picky": {"value": 2}})


def test_deeply_nested_arguments_are_an_error_for_the_model() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]

    def tool(value: int) -> None: ...

    with pytest.raises(ArgumentError, match="value: Input should be a valid integer"):
        tool_schema(tool).bind({"value": nested})


# --- injection ----------------------------------------------------------------------------------------------


def _injections() -> list[Any]:
    def plain(state, config, tool_call_id, context):  # type: ignore[no-untyped-def]
        ...

    def annotated(state: ShopState, config: dict[str, Any], tool_call_id: str, context: ToolContext) -> None: ...

    def optional(
        state: ShopState | None = None,
        config: Mapping[str, Any] | None = None,
        tool_call_id: str | None = None,
        context: ToolContext | None = None,
    ) -> None: ...

    def old_style(
        state: Optional[ShopState],  # noqa: UP045
        config: typing.Dict,  # type: ignore[type-arg]  # noqa: UP006
        tool_call_id: Annotated[str, "x"],
        context: RunContext,
    ) -> None: ...

    def as_text(state: "ShopState", config: "dict", tool_call_id: "str", context: "ToolContext") -> None: ...  # type: ignore[type-arg]

    return [plain, annotated, optional, old_style, as_text]


@pytest.mark.parametrize("function", _injections(), ids=lambda function: function.__name__)
def test_what_the_runtime_fills_in_is_hidden_from_the_model(function: Callable[..., Any]) -> None:
    schema = tool_schema(function)
    assert schema.injected == {
        "state": "state",
        "config": "config",
        "tool_call_id": "tool_call_id",
        "context": "context",
    }
    assert schema.state_type is (None if function.__name__ == "plain" else ShopState)
    assert schema.parameters["properties"] == {}
    for name in schema.injected:
        with pytest.raises(ArgumentError, match=f"^unknown argument: {name}$"):
            schema.bind({name: "mine"})


def test_a_context_may_have_any_name() -> None:
    def tool(a: int, ctx: ToolContext, *, run: RunContext) -> None: ...

    assert tool_schema(tool).injected == {"ctx": "context", "run": "context"}


def test_a_name_with_another_type_is_the_models() -> None:
    def tool(
        state: str, config: str, tool_call_id: int, context: str, states: list[AgentState] | None = None
    ) -> None: ...

    schema = tool_schema(tool)
    assert schema.injected == {}
    assert schema.state_type is None
    assert schema.parameters["required"] == ["state", "config", "tool_call_id", "context"]


def test_extra_arguments_are_passed_on_but_never_in_place_of_injected_ones() -> None:
    def tool(a: int, state: AgentState, **more: int) -> None: ...

    schema = tool_schema(tool)
    assert schema.parameters["additionalProperties"] == {"type": "integer"}
    assert schema.bind({"a": 1, "b": "2"}) == {"a": 1, "b": 2}
    with pytest.raises(ArgumentError) as caught:
        schema.bind({"a": 1, "b": "x", "state": {}})
    assert "b: Input should be a valid integer" in str(caught.value)
    assert "unknown argument: state" in str(caught.value)

    def untyped(**more):  # type: ignore[no-untyped-def]
        ...

    assert tool_schema(untyped).parameters == {"type": "object", "properties": {}, "additionalProperties": True}
