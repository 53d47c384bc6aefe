"""The search attributes by which runs are found in Temporal, and their registration with a namespace."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from .wire import RunInput

SEARCH_ATTRIBUTES = ("TenxGraph", "TenxStatus", "TenxThreadId", "TenxUserId")
"""All of them keywords."""

STATUS = SearchAttributeKey.for_keyword("TenxStatus")
"""``running`` or ``paused``; whether the run is open at all is Temporal's ``ExecutionStatus``."""

_KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
_REFUSALS = (
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.RESOURCE_EXHAUSTED,
)
REMEDY = "temporal operator search-attribute create --name {name} --type Keyword"


@dataclass(frozen=True, kw_only=True)
class Registration:
    """Which of our search attributes the namespace has. ``problem`` says why some could not be seen or made."""

    created: tuple[str, ...] = ()
    existing: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    mistyped: tuple[str, ...] = ()
    problem: str = ""


def attributes_of(run_input: RunInput) -> TypedSearchAttributes:
    """The search attributes of a run that starts."""
    values = {"TenxGraph": run_input.graph, "TenxThreadId": run_input.thread_id, "TenxUserId": run_input.user_id}
    pairs = [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in values.items()]
    return TypedSearchAttributes([*pairs, SearchAttributePair(STATUS, "running")])


async def look_up(client: Client) -> Registration:
    """What is registered; never writes.

    Raises:
        RPCError: The server could not be asked, other than for lack of permission.
    """
    try:
        answer = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError as exc:
        if exc.status not in _REFUSALS:
            raise
        return Registration(missing=SEARCH_ATTRIBUTES, problem=f"{exc.status.name}: {exc.message}")
    types = dict(answer.custom_attributes)
    return Registration(
        existing=tuple(name for name in SEARCH_ATTRIBUTES if types.get(name) == _KEYWORD),
        missing=tuple(name for name in SEARCH_ATTRIBUTES if name not in types),
        mistyped=tuple(name for name in SEARCH_ATTRIBUTES if name in types and types[name] != _KEYWORD),
    )


async def register(client: Client) -> Registration:
    """Register those that are missing. Idempotent.

    Raises:
        RPCError: The server could not be asked, other than for lack of permission.
    """
    found = await look_up(client)
    if not found.missing:
        return found
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace, search_attributes=dict.fromkeys(found.missing, _KEYWORD)
            )
        )
    except RPCError as exc:
        if exc.status == RPCStatusCode.ALREADY_EXISTS:  # another setup was faster
            return await look_up(client)
        if exc.status not in _REFUSALS:
            raise
        problem = f"{exc.status.name}: {exc.message}"
        return Registration(
            existing=found.existing, missing=found.missing, mistyped=found.mistyped, problem=found.problem or problem
        )
    return Registration(created=found.missing, existing=found.existing, mistyped=found.mistyped)
