-- 10xGraph's schema version 2: versioned states. Rows of version 1 are numbered by age within their thread.
ALTER TABLE {s}.states ADD COLUMN IF NOT EXISTS version bigint NOT NULL DEFAULT 0;

UPDATE {s}.states AS target
SET version = numbered.version
FROM (
    SELECT state_id, row_number() OVER (PARTITION BY thread_id ORDER BY created_at, state_id) AS version
    FROM {s}.states
) AS numbered
WHERE target.state_id = numbered.state_id AND target.version = 0;

CREATE INDEX IF NOT EXISTS idx_states_thread_version ON {s}.states (thread_id, version DESC);
CREATE UNIQUE INDEX IF NOT EXISTS uq_states_thread_version ON {s}.states (thread_id, version);
