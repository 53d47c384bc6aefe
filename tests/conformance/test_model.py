"""Random programs against a model: what a store may answer, it must answer, whoever interleaves with whom."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tenxgraph_temporal.runtime.errors import StoreError
from tenxgraph_temporal.runtime.storage.contract import Head, HeadMoved, MessageIdTaken, Store
from tenxgraph_temporal.runtime.storage.memory import MemoryStore
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore
from tenxgraph_temporal.runtime.storage.sqlite import SqliteStore
from tenxgraph_temporal.runtime.testing._samples import commit, decoded, entry, message, origin

T = TypeVar("T")
Opener = Callable[[], Awaitable[Store]]

THREADS = st.sampled_from(["t1", "t2"])
WRITERS = st.sampled_from(["w1", "w2", "w3"])
KEYS = st.sampled_from(["k1", "k2", "k3"])
MESSAGES = st.lists(st.sampled_from(["m1", "m2", "m3", "m4"]), unique=True, max_size=3)
KEPT = 20
PADDING = "x" * 5000
"""Enough for a commit to send only what changed."""


async def open_memory() -> Store:
    return MemoryStore()


def open_sqlite(folder: Path) -> Opener:
    async def opener() -> Store:
        store = await SqliteStore.open(folder / uuid.uuid4().hex)
        await store.setup()
        return store

    return opener


def open_postgres(dsn: str) -> Opener:
    async def opener() -> Store:
        store = await PostgresStore.open(dsn, schema=f"m_{uuid.uuid4().hex}", pool_size=4)
        await store.setup()
        return store

    return opener


@dataclass
class ThreadModel:
    """What must be true of a thread that exists."""

    state_id: int = 0
    origin: str = ""
    log: list[str] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return len(self.log)


class StoreMachine(RuleBasedStateMachine):
    """Several writers, each with the view of each thread that it loaded last, one operation at a time."""

    opener: Opener

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = self.run(type(self).opener())
        self.threads: dict[str, ThreadModel] = {}
        self.views: dict[tuple[str, str], tuple[int, int, list[str]]] = {}
        self.state_ids: set[int] = set()
        self.sent: dict[str, tuple[str, int, str]] = {}
        self.count = 0

    def run(self, work: Awaitable[T]) -> T:
        async def working() -> T:
            return await work

        return self.loop.run_until_complete(working())

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.close()

    @rule(writer=WRITERS, thread=THREADS)
    def load(self, writer: str, thread: str) -> None:
        head = self.run(self.store.load_head(thread, None))
        self.views[writer, thread] = (head.version, head.state_id, decoded(head)["log"]) if head else (0, 0, [])

    @rule(writer=WRITERS, thread=THREADS, messages=MESSAGES, keys=st.lists(KEYS, unique=True, max_size=2))
    def commit(self, writer: str, thread: str, messages: list[str], keys: list[str]) -> None:
        version, state_id, log = self.views.get((writer, thread), (0, 0, []))
        self.count += 1
        name = f"{writer}-{self.count}"
        model = self.threads.get(thread)
        taken = {m for m in messages if any(m in t.messages for key, t in self.threads.items() if key != thread)}
        work = commit(
            self.store,
            version,
            {"log": [*log, name]},
            by=origin(name),
            thread_id=thread,
            messages=[message(m, name) for m in messages],
            results=[entry(k, name) for k in keys],
            expected_state_id=state_id,
        )
        current = model.version if model else 0
        if version != current or state_id != (model.state_id if model else 0):
            with pytest.raises(HeadMoved) as moved:
                self.run(work)
            assert moved.value.head.version == current
            return
        if taken:
            with pytest.raises(MessageIdTaken) as refused:
                self.run(work)
            assert refused.value.message_ids == taken
            return
        made = self.run(work)
        assert (made.version, made.replayed) == (current + 1, False)
        assert made.state_id not in self.state_ids
        self.state_ids.add(made.state_id)
        model = self.threads.setdefault(thread, ThreadModel())
        assert log == model.log, "a writer at the head's version had its state"
        model.state_id, model.origin = made.state_id, name
        model.log.append(name)
        model.messages.update(dict.fromkeys(messages, name))
        for key in keys:
            model.results.setdefault(key, name)
        self.views[writer, thread] = (made.version, made.state_id, [*model.log])

    @rule(thread=THREADS)
    def commit_again(self, thread: str) -> None:
        model = self.threads.get(thread)
        if model is None:
            return
        again = self.run(
            commit(self.store, model.version - 1, {"log": ["x"]}, by=origin(model.origin), thread_id=thread)
        )
        assert (again.replayed, again.state_id, again.version) == (True, model.state_id, model.version)

    @rule(thread=THREADS, key=KEYS, inside=st.booleans())
    def record(self, thread: str, key: str, inside: bool) -> None:
        self.count += 1
        value = f"record-{self.count}"
        model = self.threads.get(thread)
        work = self._record_inside(thread, key, value) if inside else self.store.record(thread, entry(key, value))
        if model is None:
            with pytest.raises(StoreError):
                self.run(work)
            return
        first = self.run(work)
        assert first == (entry(key, model.results[key]).envelope if key in model.results else None)
        model.results.setdefault(key, value)

    async def _record_inside(self, thread: str, key: str, value: str) -> Any:
        if isinstance(self.store, MemoryStore):
            return await self.store.record(thread, entry(key, value))
        async with self.store.transaction() as transaction:
            return await transaction.record(thread, entry(key, value))

    @rule(thread=THREADS)
    def delete(self, thread: str) -> None:
        assert self.run(self.store.delete_thread(thread, None)) == (self.threads.pop(thread, None) is not None)

    @invariant()
    def agrees(self) -> None:
        self.run(self._agrees())

    async def _agrees(self) -> None:
        infos = await self.store.list_threads()
        assert {t.thread_id: t.version for t in infos} == {key: t.version for key, t in self.threads.items()}
        for thread in ("t1", "t2"):
            model = self.threads.get(thread)
            found = await self.store.lookup(thread, ["k1", "k2", "k3"])
            rows = await self.store.list_messages(thread, None)
            versions = await self.store.list_versions(thread, None)
            if model is None:
                assert (found, rows, versions) == ({}, [], [])
                continue
            head = await self.store.load_head(thread, None)
            assert decoded(head) == {"log": model.log}
            assert {key: envelope["value"] for key, envelope in found.items()} == model.results
            assert [(row.message_id, row.content[0]["text"]) for row in rows] == list(model.messages.items())
            assert [v.version for v in versions] == list(range(model.version, max(0, model.version - KEPT), -1))


@pytest.mark.parametrize(("kind", "examples"), [("memory", 60), ("sqlite", 25), ("postgres", 15)])
def test_any_order_of_operations(kind: str, examples: int, postgres_dsn: str, tmp_path: Path) -> None:
    opener = opener_of(kind, postgres_dsn, tmp_path)
    machine = type("Machine", (StoreMachine,), {"opener": staticmethod(opener)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
@pytest.mark.parametrize("seed", range(3))
async def test_any_interleaving_of_writers(kind: str, seed: int, postgres_dsn: str, tmp_path: Path) -> None:
    """Writers run at once; afterwards every answer that they got must fit one order of the commits."""
    store = await opener_of(kind, postgres_dsn, tmp_path)()
    try:
        runs = [Writer(store, n, random.Random(f"{seed}/{n}")) for n in range(6)]
        await asyncio.gather(*(run.run(40) for run in runs))
        written = {state_id: done for run in runs for state_id, done in run.written.items()}
        assert len(written) == sum(len(run.written) for run in runs), f"seed {seed}: a state id repeats"
        # Every commit must stand on the commit whose log it extended, and no two on the same one.
        bases = [(thread, tuple(log[:-1]), base) for thread, log, base in written.values() if base]
        assert len(set(bases)) == len(bases), f"seed {seed}: two commits on one head"
        for thread in ("t1", "t2"):
            head = await store.load_head(thread, None)
            if head is None:
                continue
            log = decoded(head)["log"]
            assert len(log) == head.version, f"seed {seed}: versions of {thread} are not dense"
            assert written[head.state_id][1] == log, f"seed {seed}: {thread} holds what nobody committed last"
            current = await store.lookup(thread, ["k1", "k2", "k3"])
            for key, envelope in current.items():
                claims = [r for run in runs for r in run.first if r == (thread, key, envelope["value"])]
                assert len(claims) == 1, f"seed {seed}: the record of {key} has {len(claims)} writers"
    finally:
        await store.close()


@dataclass
class Writer:
    """One of several at once."""

    store: Store
    number: int
    random: random.Random
    written: dict[int, tuple[str, list[str], int]] = field(default_factory=dict)
    first: list[tuple[str, str, str]] = field(default_factory=list)

    async def run(self, steps: int) -> None:
        for step in range(steps):
            thread = self.random.choice(["t1", "t2"])
            action = self.random.choices([self.commit, self.record, self.delete], [12, 6, 1])[0]
            await self.act(action, thread, f"{self.number}-{step}")

    async def act(self, action: Callable[[str, str], Coroutine[Any, Any, None]], thread: str, name: str) -> None:
        await action(thread, name)

    async def commit(self, thread: str, name: str) -> None:
        head: Head | None = await self.store.load_head(thread, None)
        log = decoded(head)["log"] if head else []
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.random() * 0.003)
        try:
            made = await commit(
                self.store,
                head.version if head else 0,
                {"log": [*log, name], "large": PADDING},
                base=head.fields if head else None,
                by=origin(name),
                thread_id=thread,
                messages=[message(f"{thread}-{name}")],
                expected_state_id=head.state_id if head else 0,
            )
        except HeadMoved as moved:
            # Moved on, deleted, or deleted and made again, perhaps up to the same number.
            assert moved.head.state_id != (head.state_id if head else 0)
            return
        assert made.version == (head.version if head else 0) + 1
        self.written[made.state_id] = (thread, [*log, name], head.state_id if head else 0)

    async def record(self, thread: str, name: str) -> None:
        key = self.random.choice(["k1", "k2", "k3"])
        try:
            first = await self.store.record(thread, entry(key, name))
        except StoreError:
            return
        if first is None:
            self.first.append((thread, key, name))

    async def delete(self, thread: str, name: str) -> None:
        await self.store.delete_thread(thread, None)


def opener_of(kind: str, postgres_dsn: str, folder: Path) -> Opener:
    if kind == "postgres":
        return open_postgres(postgres_dsn)
    return open_memory if kind == "memory" else open_sqlite(folder)
