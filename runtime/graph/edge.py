"""Edges: what comes after a node."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from ..errors import RoutingError
from ..state import AgentState


@dataclass(frozen=True)
class Edge:
    """A plain edge has a ``target``; a conditional one a ``router`` and maybe ``paths``."""

    source: str
    target: str | None
    router: Callable[..., Any] | None = None
    paths: dict[Hashable, str] | None = None

    def targets(self) -> tuple[str, ...]:
        """The nodes that it names, as far as that is known beforehand."""
        return tuple(self.paths.values()) if self.paths else (self.target,) if self.target else ()

    async def route(self, state: AgentState) -> str | None:
        """Where a conditional edge leads now; ``None`` if it does not apply.

        Raises:
            RoutingError: The router raised.
        """
        assert self.router is not None
        try:
            value = self.router(state)
            if inspect.isawaitable(value):
                value = await value
        except (Exception, SystemExit) as exc:  # the latter would end the worker
            raise RoutingError(
                f"the router {_name(self.router)} after node {self.source!r} raised {type(exc).__name__}: {exc}"
            ) from exc
        if self.paths is not None:
            if isinstance(value, Hashable) and value in self.paths:
                return self.paths[value]
            if value:
                raise RoutingError(
                    f"the router {_name(self.router)} after node {self.source!r} returned {value!r}, which is "
                    f"none of its paths ({', '.join(map(repr, self.paths))})"
                )
            return None
        if isinstance(value, str):
            return value
        if value:
            raise RoutingError(
                f"the router {_name(self.router)} after node {self.source!r} returned {value!r}; "
                "return a node's name, or pass a path_map"
            )
        return None


def _name(router: Callable[..., Any]) -> str:
    return getattr(router, "__name__", type(router).__name__)
