-- 10xGraph's schema version 3: the tool ledger. The primary key is the idempotency key.
CREATE TABLE IF NOT EXISTS {s}.tool_executions (
    thread_id    varchar(255) NOT NULL REFERENCES {s}.threads (thread_id) ON DELETE CASCADE,
    tool_call_id varchar(255) NOT NULL,
    result       jsonb NOT NULL,
    created_at   timestamptz DEFAULT now(),
    PRIMARY KEY (thread_id, tool_call_id)
);
