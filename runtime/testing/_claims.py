"""Claims: at most one attempt runs a call, and a lost one is told from a running one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from ..storage.contract import Claimed, Held, InDoubt, Recorded, Store
from ._samples import THREAD, USER, commit, entry, intent

KEY = "m1:call-1"
SHORT = 0.05


class ClaimsConformance:
    """``claim``, ``take_over``, ``renew``, ``release``."""

    async def test_a_free_call_can_be_claimed(self, store: Store) -> None:
        await commit(store, 0)
        assert await store.claim(THREAD, intent(KEY, "a")) == Claimed()
        assert await store.lookup(THREAD, [KEY]) == {}, "a claim is no record"

    async def test_a_recorded_call_is_not_run_again(self, store: Store) -> None:
        await commit(store, 0)
        await store.record(THREAD, entry(KEY, None))
        assert await store.claim(THREAD, intent(KEY, "a")) == Recorded(entry(KEY, None).envelope)
        assert await store.take_over(THREAD, intent(KEY, "a")) == Recorded(entry(KEY, None).envelope)

    async def test_a_claimed_call_is_held_while_its_lease_lives(self, store: Store) -> None:
        await commit(store, 0)
        await store.claim(THREAD, intent(KEY, "a", 30, worker="w1", attempt=3))
        for claim in (await store.claim(THREAD, intent(KEY, "b")), await store.take_over(THREAD, intent(KEY, "b"))):
            assert isinstance(claim, Held), claim
            assert (claim.worker, claim.attempt) == ("w1", 3)
            assert timedelta(seconds=20) < claim.remaining <= timedelta(seconds=30), claim

    async def test_the_same_attempt_may_claim_twice(self, store: Store) -> None:
        await commit(store, 0)
        await store.claim(THREAD, intent(KEY, "a", SHORT))
        assert await store.claim(THREAD, intent(KEY, "a", SHORT)) == Claimed()
        await asyncio.sleep(SHORT * 2)
        assert await store.claim(THREAD, intent(KEY, "a", 30)) == Claimed()
        assert isinstance(await store.claim(THREAD, intent(KEY, "b")), Held)

    async def test_a_lost_attempt_leaves_its_call_in_doubt(self, store: Store) -> None:
        await commit(store, 0)
        before = datetime.now(UTC)
        await store.claim(THREAD, intent(KEY, "a", SHORT, worker="w1", attempt=2))
        await asyncio.sleep(SHORT * 2)
        for _ in range(2):  # asking does not claim it
            claim = await store.claim(THREAD, intent(KEY, "b"))
            assert isinstance(claim, InDoubt), claim
            assert (claim.worker, claim.attempt) == ("w1", 2)
            assert abs(claim.started_at - before) < timedelta(seconds=5), claim
        (call,) = await store.calls(THREAD)
        assert (call.status, call.worker) == ("in_doubt", "w1")

    async def test_a_call_in_doubt_can_be_taken_over(self, store: Store) -> None:
        await commit(store, 0)
        await store.claim(THREAD, intent(KEY, "a", SHORT, worker="w1"))
        await asyncio.sleep(SHORT * 2)
        assert await store.take_over(THREAD, intent(KEY, "b", worker="w2", attempt=2)) == Claimed()
        held = await store.claim(THREAD, intent(KEY, "c"))
        assert isinstance(held, Held), held
        assert (held.worker, held.attempt) == ("w2", 2)
        assert isinstance(await store.take_over(THREAD, intent(KEY, "c")), Held)

    async def test_a_free_call_can_be_taken_over_too(self, store: Store) -> None:
        await commit(store, 0)
        assert await store.take_over(THREAD, intent(KEY, "a")) == Claimed()

    async def test_a_renewed_claim_stays_held(self, store: Store) -> None:
        await commit(store, 0)
        await store.claim(THREAD, intent(KEY, "a", SHORT))
        assert await store.renew(THREAD, KEY, "a", timedelta(seconds=30))
        await asyncio.sleep(SHORT * 2)
        assert isinstance(await store.claim(THREAD, intent(KEY, "b")), Held)

    async def test_an_expired_claim_can_be_renewed_until_it_is_taken_over(self, store: Store) -> None:
        await commit(store, 0)
        await store.claim(THREAD, intent(KEY, "a", SHORT))
        await asyncio.sleep(SHORT * 2)
        assert await store.renew(THREAD, KEY, "a", timedelta(seconds=SHORT))
        await asyncio.sleep(SHORT * 2)
        await store.take_over(THREAD, intent(KEY, "b"))
        assert not await store.renew(THREAD, KEY, "a", timedelta(seconds=30))
        assert await store.renew(THREAD, KEY, "b", timedelta(seconds=30))

    async def test_only_a_claim_can_be_renewed(self, store: Store) -> None:
        await commit(store, 0)
        assert not await store.renew(THREAD, KEY, "a", timedelta(seconds=30))
        assert not await store.renew("nowhere", KEY, "a", timedelta(seconds=30))
        assert await store.claim(THREAD, intent(KEY, "b")) == Claimed(), "renewing claims nothing"

    async def test_a_released_call_is_free(self, store: Store) -> None:
        await commit(store, 0)
        await store.claim(THREAD, intent(KEY, "a"))
        await store.release(THREAD, KEY, "b")
        await store.release("nowhere", KEY, "a")
        assert isinstance(await store.claim(THREAD, intent(KEY, "b")), Held), "only its owner releases it"
        await store.release(THREAD, KEY, "a")
        assert await store.calls(THREAD) == []
        assert await store.claim(THREAD, intent(KEY, "b")) == Claimed()

    async def test_a_record_ends_the_doubt(self, store: Store) -> None:
        """A late record of a lost attempt is still the first."""
        await commit(store, 0)
        await store.claim(THREAD, intent(KEY, "a", SHORT, tool="pay"))
        await asyncio.sleep(SHORT * 2)
        assert await store.record(THREAD, entry(KEY, "paid", tool="pay")) is None
        assert await store.claim(THREAD, intent(KEY, "b")) == Recorded(entry(KEY, "paid").envelope)
        (call,) = await store.calls(THREAD)
        assert (call.status, call.tool, call.envelope) == ("finished", "pay", entry(KEY, "paid").envelope)

    async def test_claims_belong_to_their_thread_and_key(self, store: Store) -> None:
        await commit(store, 0)
        await commit(store, 0, thread_id="thread-2")
        await store.claim(THREAD, intent(KEY, "a"))
        assert await store.claim("thread-2", intent(KEY, "b")) == Claimed()
        assert await store.claim(THREAD, intent("m1:call-2", "b")) == Claimed()

    async def test_claims_go_with_their_thread(self, store: Store) -> None:
        await commit(store, 0)
        await store.claim(THREAD, intent(KEY, "a"))
        await store.delete_thread(THREAD, USER)
        await commit(store, 0)
        assert await store.calls(THREAD) == []
        assert await store.claim(THREAD, intent(KEY, "b")) == Claimed()
