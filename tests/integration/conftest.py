"""What several files here ask for by ``pytest.mark.usefixtures``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ..support.app import App
from ..support.encryption import K1, with_keys


@pytest.fixture
def keeps_workflows(app: App) -> None:
    """For tests that query and update.

    With no cache, a query or an update during a local activity now and then trips the SDK ("Attempted to check for LA
    marker handling in invalid state"); every history is replayed afterwards in any case.
    """
    app.max_cached_workflows = 100


@pytest.fixture
async def encrypted(app: App) -> AsyncIterator[App]:
    """``app`` for a client with the key ``k1``."""
    other = await with_keys(app, K1)
    yield other
    await other.replay_all()
