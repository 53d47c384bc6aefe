"""A process that writes to one thread as fast as it can, beside others, and says what was acknowledged.

Each state holds the ids of all messages so far and counts its commits, so that the history shows a lost update, a
commit that was written twice, and a state without its messages.
"""

from __future__ import annotations

import asyncio
import random
import sys
import uuid

from tenxgraph_temporal.runtime.errors import StoreUnavailable
from tenxgraph_temporal.runtime.state.encoding import dump_json, load_json
from tenxgraph_temporal.runtime.storage.contract import Commit, HeadMoved, LedgerEntry, MessageRow, Origin
from tenxgraph_temporal.runtime.storage.postgres import PostgresStore

THREAD = "contended"


async def write(dsn: str, schema: str) -> None:
    store = await PostgresStore.open(dsn, schema=schema, pool_size=2, state_history_limit=0, retry_timeout=30)
    stale = 0
    while True:
        head = await store.load_head(THREAD, None)
        version = head.version if head else 0
        fields = head.fields if head and head.fields else {"count": b"0", "said": b"[]"}
        said = [str(uuid.uuid4()) for _ in range(random.randrange(3))]
        commit_id = str(uuid.uuid4())
        commit = Commit(
            thread_id=THREAD,
            user_id="u",
            # now and then from what it read before: as a zombie does
            expected_version=stale if random.random() < 0.1 else version,
            fields={
                "count": dump_json(load_json(fields["count"]) + 1),
                "said": dump_json([*load_json(fields["said"]), *said]),
            },
            origin=Origin(run_id=commit_id, commit_id="1", position={}),
            messages=[MessageRow(message_id=message_id, role="user", content=[]) for message_id in said],
            results=[LedgerEntry(ledger_key=commit_id, envelope={"__kind__": "raw", "value": 1})],
        )
        try:
            committed = await store.commit(commit)
        except HeadMoved:
            continue
        except StoreUnavailable:  # longer than the store's own patience
            continue
        stale = version
        print("acknowledged", committed.version, commit_id, flush=True)


if __name__ == "__main__":
    asyncio.run(write(*sys.argv[1:3]))
