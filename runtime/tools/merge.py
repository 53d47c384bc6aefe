"""Joining the state changes of a message's calls, in call order."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import NodeError, problems
from ..state import AgentState
from ..state.encoding import dump_json, encode_state, load_json, to_jsonable
from ..state.reducers import Reducer, reduced
from .result import CallResult

logger = logging.getLogger(__name__)

_NOT_THE_TOOLS = ("context", "context_summary", "execution_meta")
INTERNAL = "execution_meta.internal_data."
"""Prefix of a changed key of ``internal_data`` among a call's state changes."""
UPDATE = "update."
"""Prefix of a field whose value is to go through the field's reducer, among a call's state changes."""


def changed_fields(before: AgentState, after: AgentState) -> dict[str, Any]:
    """The fields that a tool changed in its copy, JSON-native; keys of ``internal_data`` one by one.

    Raises:
        EncodingError: A changed field cannot be stored.
        pydantic.ValidationError: A changed field holds what it cannot hold.
    """
    old, new = encode_state(before), encode_state(after)
    changes = {name: load_json(new[name]) for name in new if name not in _NOT_THE_TOOLS and new[name] != old[name]}
    was, now = before.execution_meta.internal_data, after.execution_meta.internal_data
    for key, value in now.items():
        if key not in was or was[key] != value:
            changes[INTERNAL + key] = load_json(dump_json(value))
    # Whatever the tool assigned in place must be what the field can hold, or no later step could read the state.
    before.set_fields({name: value for name, value in changes.items() if not name.startswith(INTERNAL)})
    return changes


def requested_changes(cls: type[AgentState], values: dict[str, Any], updates: dict[str, Any]) -> dict[str, Any]:
    """The changes that a tool asks for without having looked at the state.

    Args:
        cls: The state's class.
        values: Fields to set.
        updates: Fields to join through their reducers.

    Raises:
        KeyError, pydantic.ValidationError, EncodingError: As for a state that is at hand.
    """
    if not (values or updates):
        return {}
    cls().set_fields(values)
    cls().apply(updates)
    changes = {name: to_jsonable(value) for name, value in values.items()}
    return changes | {UPDATE + name: to_jsonable(value) for name, value in updates.items()}


def merge_results(state: AgentState, baseline: AgentState, results: Sequence[CallResult], *, node: str) -> str | None:
    """Write what the calls changed into ``state``; only what a call changed counts.

    The first change of a field is taken as it is. A further one goes through the field's reducer, as the
    difference to ``baseline`` where that can be told (items appended to a list, a sum); without a reducer the
    last call in order wins, and that is logged.

    Returns:
        The node that the first ``Command`` with a ``goto`` names.

    Raises:
        NodeError: A change that its field cannot hold, or that its reducer cannot join.
    """
    reducers = type(state).reducers()
    changed: set[str] = set()
    internal = state.execution_meta.internal_data
    base_internal = baseline.execution_meta.internal_data
    for result in results:
        for name, value in result.state.items():
            if name.startswith(INTERNAL):
                key = name.removeprefix(INTERNAL)
                internal[key] = _joined_internal(base_internal.get(key), internal.get(key), value)
            elif name.startswith(UPDATE):
                field = name.removeprefix(UPDATE)
                if field in type(state).model_fields and field not in _NOT_THE_TOOLS:
                    with _fits(field, node):
                        state.apply({field: value})
                    changed.add(field)
            elif name in type(state).model_fields and name not in _NOT_THE_TOOLS:
                with _fits(name, node):
                    _merge_field(state, baseline, name, value, reducers.get(name), name in changed, node)
                changed.add(name)
    return next((result.goto for result in results if result.goto), None)


def _merge_field(
    state: AgentState,
    baseline: AgentState,
    name: str,
    value: Any,
    reducer: Reducer | None,
    again: bool,
    node: str,
) -> None:
    current, base = getattr(state, name), getattr(baseline, name)
    state._assign(name, value)
    if not again:
        return
    if reducer is None:
        logger.warning(
            "node %s: parallel tools both changed state field %s, which has no reducer; the last call's value "
            "is kept. Annotate the field with a reducer to combine them.",
            node,
            name,
        )
        return
    state._assign(name, reduced(name, reducer, current, _difference(reducer, base, getattr(state, name))))


@contextmanager
def _fits(field: str, node: str) -> Iterator[None]:
    try:
        yield
    except ValueError as exc:
        said = f"node {node!r}: what a tool changed in field {field!r} cannot be kept: {problems(exc)}"
        raise NodeError(said) from exc


def _difference(reducer: Reducer, base: Any, value: Any) -> Any:
    """What a branch added to ``base``, where that can be told, so that nothing is counted twice."""
    if isinstance(value, list) and isinstance(base, list) and value[: len(base)] == base:
        return value[len(base) :]
    if reducer is operator.add and isinstance(value, int | float) and isinstance(base, int | float):
        return value - base
    return value


def _joined_internal(base: Any, current: Any, value: Any) -> Any:
    if isinstance(value, list) and isinstance(current, list) and current != base:
        known = base if isinstance(base, list) else []
        if value[: len(known)] == known:
            return [*current, *value[len(known) :]]
    return value
