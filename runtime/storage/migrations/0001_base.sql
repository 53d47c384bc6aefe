-- 10xGraph's schema version 1: threads, states, messages.
DO $$ BEGIN
    CREATE TYPE {s}.message_role AS ENUM ('user', 'assistant', 'system', 'tool');
EXCEPTION WHEN duplicate_object THEN NULL; END $$;

CREATE TABLE IF NOT EXISTS {s}.threads (
    thread_id   varchar(255) PRIMARY KEY,
    thread_name varchar(255),
    user_id     varchar(255) NOT NULL,
    created_at  timestamptz DEFAULT now(),
    updated_at  timestamptz DEFAULT now(),
    meta        jsonb DEFAULT '{{}}'
);

CREATE TABLE IF NOT EXISTS {s}.states (
    state_id   serial PRIMARY KEY,
    thread_id  varchar(255) NOT NULL REFERENCES {s}.threads (thread_id) ON DELETE CASCADE,
    state_data jsonb NOT NULL,
    created_at timestamptz DEFAULT now(),
    updated_at timestamptz DEFAULT now(),
    meta       jsonb DEFAULT '{{}}'
);

CREATE TABLE IF NOT EXISTS {s}.messages (
    message_id   varchar(255) PRIMARY KEY,
    thread_id    varchar(255) NOT NULL REFERENCES {s}.threads (thread_id) ON DELETE CASCADE,
    role         {s}.message_role NOT NULL,
    content      text NOT NULL,
    tool_calls   jsonb,
    tool_call_id varchar(255),
    reasoning    text,
    created_at   timestamptz DEFAULT now(),
    updated_at   timestamptz DEFAULT now(),
    total_tokens int DEFAULT 0,
    usages       jsonb DEFAULT '{{}}',
    meta         jsonb DEFAULT '{{}}'
);

CREATE INDEX IF NOT EXISTS idx_threads_user_id ON {s}.threads (user_id);
CREATE INDEX IF NOT EXISTS idx_states_thread_id ON {s}.states (thread_id);
CREATE INDEX IF NOT EXISTS idx_messages_thread_id ON {s}.messages (thread_id);
