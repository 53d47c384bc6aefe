-- Ours, beside 10xGraph's tables: who ran a call, how often its record was reused, and claims in progress.
ALTER TABLE {s}.tool_executions
    ADD COLUMN IF NOT EXISTS tool    text,
    ADD COLUMN IF NOT EXISTS status  text,
    ADD COLUMN IF NOT EXISTS attempt int,
    ADD COLUMN IF NOT EXISTS worker  text,
    ADD COLUMN IF NOT EXISTS replays int;

CREATE TABLE IF NOT EXISTS {s}.tool_intents (
    thread_id    varchar(255) NOT NULL REFERENCES {s}.threads (thread_id) ON DELETE CASCADE,
    tool_call_id varchar(255) NOT NULL,
    owner        text NOT NULL,
    tool         text NOT NULL,
    attempt      int NOT NULL,
    worker       text NOT NULL,
    lease_until  timestamptz NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (thread_id, tool_call_id)
);

CREATE TABLE IF NOT EXISTS {s}.tool_interrupts (
    thread_id    varchar(255) NOT NULL REFERENCES {s}.threads (thread_id) ON DELETE CASCADE,
    interrupt_id text NOT NULL,
    request      jsonb NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_id, interrupt_id)
);

CREATE INDEX IF NOT EXISTS idx_threads_updated_at ON {s}.threads (updated_at DESC);
