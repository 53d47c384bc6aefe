"""Deadlines and pauses as users and errors write them."""

from __future__ import annotations

import logging
from datetime import timedelta
from email.message import Message as Headers
from email.utils import formatdate
from time import time
from typing import Any
from urllib.error import HTTPError

import pytest

from tenxgraph_temporal import Retry, StateGraph, ToolNode, tool
from tenxgraph_temporal.runtime.errors import GraphDefinitionError
from tenxgraph_temporal.runtime.limits import DEFAULT_NODE_TIMEOUT, DEFAULT_TOOL_TIMEOUT, RunConfig

YEARS = timedelta(days=3650).total_seconds()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (60, 60.0),
        ("1.5", 1.5),
        (timedelta(minutes=1), 60.0),
        (None, None),
        (0, None),
        (-1, None),
        (float("inf"), None),
        (1e300, None),  # more than Temporal can be told
        (YEARS, None),
    ],
)
def test_a_deadline(value: Any, expected: float | None) -> None:
    config = RunConfig.of({"node_timeout": value, "tool_timeout": value})
    assert config.node_seconds(7) == config.tool_seconds(7) == expected


@pytest.mark.parametrize("value", ["soon", True, float("nan"), [5], {}, 10**400])
def test_a_deadline_that_makes_no_sense(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    config = RunConfig.of({"node_timeout": value, "tool_timeout": value})
    with caplog.at_level(logging.WARNING):
        assert (config.node_seconds(7), config.tool_seconds(8)) == (7, 8)
        assert RunConfig().node_seconds(value) == DEFAULT_NODE_TIMEOUT
        assert RunConfig().tool_seconds(value) == DEFAULT_TOOL_TIMEOUT
    assert [r.message.partition("=")[0] for r in caplog.records] == [
        "node_timeout",
        "tool_timeout",
        "timeout of the node",
        "timeout of the tool",
    ]


class Asks(Exception):
    def __init__(self, retry_after: Any) -> None:
        self.retry_after = retry_after


class HasHeaders(Exception):
    """As aiohttp's errors."""

    def __init__(self, headers: Any) -> None:
        self.headers = headers


def headers(value: str) -> Headers:
    headers = Headers()
    headers["Retry-After"] = value
    return headers


class HasResponse(Exception):
    """As the errors of httpx, requests and the models' own packages."""

    def __init__(self, value: str) -> None:
        self.response = HasHeaders(headers(value))


def of_urllib(value: str) -> Exception:
    return HTTPError("http://model", 429, "busy", headers(value), None)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Asks(3600), 3600.0),
        (Asks("7.5"), 7.5),
        (Asks(timedelta(hours=1)), 3600.0),
        (Asks(-5), 0.0),
        (Asks(1e20), YEARS),
        (HasResponse("30"), 30.0),
        (of_urllib("30"), 30.0),
        (HasHeaders({"retry-after": "30"}), 30.0),
        (HasResponse("Wed, 21 Oct 2015 07:28:00 GMT"), 0.0),
        # what cannot be read says nothing
        (Asks("soon"), 2.0),
        (Asks(float("nan")), 2.0),
        (HasResponse("soon"), 2.0),
        (HasHeaders("no mapping"), 2.0),
        (ValueError("says nothing"), 2.0),
    ],
)
def test_how_long_an_error_asks_to_wait(error: Exception, seconds: float) -> None:
    assert Retry(max_attempts=5, interval=1.0).delay(2, error) == seconds


def test_an_error_that_asks_to_wait_until_a_time() -> None:
    delay = Retry().delay(1, HasResponse(formatdate(time() + 3600, usegmt=True)))
    assert delay is not None and 3590 < delay <= 3600


def test_pauses_double_up_to_their_bound() -> None:
    retry = Retry(max_attempts=5000, interval=600, max_interval=7200)
    assert [retry.delay(attempt, ValueError()) for attempt in (1, 2, 4, 5, 4999)] == [600, 1200, 4800, 7200, 7200]
    assert retry.delay(5000, ValueError()) is None


@pytest.mark.parametrize("value", [5, None, {"a": 1}, "model", [1]])
def test_nodes_that_are_no_list_of_names(value: Any) -> None:
    assert RunConfig.of({"interrupt_before": value}).names("interrupt_before") <= {"a"}


def test_names_that_temporal_would_refuse_for_ever() -> None:
    long = "ö" * 451
    with pytest.raises(GraphDefinitionError, match="more than 900 bytes"):
        StateGraph().add_node(long, lambda state: "x")
    with pytest.raises(GraphDefinitionError, match="more than 900 bytes"):
        StateGraph().add_node("node", lambda state: "x", task_queue=long)
    with pytest.raises(GraphDefinitionError, match="more than 900 bytes"):
        ToolNode([tool(name="looks", task_queue=long)(lambda: "x")])
