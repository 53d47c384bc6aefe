"""One user's threads are nobody else's."""

from __future__ import annotations

import pytest

from ..errors import ForbiddenError
from ..storage.contract import Store
from ._samples import THREAD, USER, OpenStore, chain, commit, message, state_of

STRANGER = "user-2"


class IsolationConformance:
    """``ForbiddenError``."""

    async def test_for_a_stranger_there_is_no_such_thread(self, store: Store) -> None:
        made = await chain(store, 2)
        for thread_id in (THREAD, "nowhere"):
            assert await store.load_head(thread_id, STRANGER) is None
            assert await store.load_head(thread_id, STRANGER, known_state_id=made[-1].state_id) is None
            assert await store.list_versions(thread_id, STRANGER) == []
            assert await store.load_version(thread_id, STRANGER, 1) is None
            assert await store.list_messages(thread_id, STRANGER) == []
            assert await store.delete_thread(thread_id, STRANGER) is False

    @pytest.mark.parametrize("expected_version", [0, 1, 2])
    async def test_a_stranger_cannot_write(self, store: Store, expected_version: int) -> None:
        await commit(store, 0, {"n": 1})
        with pytest.raises(ForbiddenError):
            await commit(store, expected_version, {"n": "stolen"}, user_id=STRANGER, messages=[message("m1")])
        assert await state_of(store) == {"n": 1}
        assert await store.list_messages(THREAD, USER) == []

    async def test_a_stranger_cannot_delete(self, store: Store) -> None:
        await commit(store, 0)
        assert await store.delete_thread(THREAD, STRANGER) is False
        assert await store.load_head(THREAD, USER) is not None

    async def test_a_list_holds_the_users_own_threads(self, store: Store) -> None:
        await commit(store, 0, thread_id="mine")
        await commit(store, 0, thread_id="theirs", user_id=STRANGER)
        assert [t.thread_id for t in await store.list_threads(user_id=USER)] == ["mine"]
        assert {t.thread_id for t in await store.list_threads()} == {"mine", "theirs"}

    async def test_an_operator_may_do_it_all(self, store: Store) -> None:
        await chain(store, 2)
        assert await store.load_head(THREAD, None) is not None
        assert len(await store.list_versions(THREAD, None)) == 2
        assert await store.load_version(THREAD, None, 1) is not None
        assert await store.list_messages(THREAD, None) == []
        assert await store.delete_thread(THREAD, None)

    async def test_isolation_can_be_switched_off(self, open_store: OpenStore) -> None:
        store = await open_store(enforce_user_isolation=False)
        await commit(store, 0)
        assert (await commit(store, 1, user_id=STRANGER)).version == 2
        head = await store.load_head(THREAD, STRANGER)
        assert head is not None
        assert head.user_id == USER, "the owner stays"
        assert len(await store.list_versions(THREAD, STRANGER)) == 2
        assert await store.load_version(THREAD, STRANGER, 1) is not None
        assert await store.list_messages(THREAD, STRANGER) == []
        assert await store.delete_thread(THREAD, STRANGER)
