"""A thread's state as it was committed, and the newest ones of this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..limits import RunConfig
from ..state import AgentState
from ..state.encoding import Fields, decode_state
from .contract import Head, Origin

S = TypeVar("S", bound=AgentState)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A state as it was committed. Version 0 is a thread that has none yet.

    ``version``, ``state_id`` and ``row`` name the newest row of the store that it is, or goes on from: ``unsaved``
    counts the commits since then that are in the caches only.
    """

    version: int = 0
    state_id: int = 0
    row: str = ""
    """The commit that wrote the row."""
    unsaved: int = 0
    unsaved_messages: frozenset[str] = frozenset()
    """Ids of the messages that those commits added."""
    fields: Fields = field(default_factory=dict)
    origin: Origin | None = None

    @classmethod
    def of(cls, head: Head) -> Snapshot:
        """What the store has."""
        return cls(
            version=head.version,
            state_id=head.state_id,
            row=commit_name(head.origin),
            fields=head.fields or {},
            origin=head.origin,
        )

    def goes_on_from(self, head: Head) -> bool:
        """Whether ``head`` is the very row that this is, or goes on from: id, version and commit."""
        if self.unsaved and (head.origin is None or RunConfig.of(head.origin.config).durable):
            return False  # that run saved every step
        return (self.state_id, self.version, self.row) == (head.state_id, head.version, commit_name(head.origin))

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the run that committed it."""
        return self.origin.config if self.origin else {}

    def decode(self, cls: type[S]) -> S:
        """A fresh state of class ``cls``; it shares nothing with any other copy."""
        return decode_state(cls, self.fields)


def commit_name(origin: Origin | None) -> str:
    """A commit's identity over all runs; empty for a row of 10xGraph or an operator."""
    return f"{origin.run_id}/{origin.commit_id}" if origin else ""


class StateCache:
    """The newest snapshots of this process by thread, bounded in bytes; least recently used go first.

    An entry counts only for the row that it was made of, so a wrong entry costs time, never correctness.
    """

    def __init__(self, max_bytes: int = 256 * 1024 * 1024) -> None:
        self._entries: OrderedDict[str, tuple[Snapshot, int]] = OrderedDict()
        self._max_bytes = max_bytes
        self._bytes = 0

    def get(self, thread_id: str) -> Snapshot | None:
        """The snapshot of ``thread_id`` that was put last, if it is still kept."""
        entry = self._entries.get(thread_id)
        if entry is None:
            return None
        self._entries.move_to_end(thread_id)
        return entry[0]

    def put(self, thread_id: str, snapshot: Snapshot) -> None:
        """Keep ``snapshot`` instead of what was kept for its thread."""
        self.drop(thread_id)
        size = sum(map(len, snapshot.fields.values()))
        self._entries[thread_id] = (snapshot, size)
        self._bytes += size
        while self._bytes > self._max_bytes and self._entries:
            _, (_, dropped) = self._entries.popitem(last=False)
            self._bytes -= dropped

    def drop(self, thread_id: str) -> None:
        """Forget a thread."""
        _, size = self._entries.pop(thread_id, (None, 0))
        self._bytes -= size
