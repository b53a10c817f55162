-- migrate:up

-- The tokens of system locks are separate from the locks: they never restart, even if a lock's row is deleted.
CREATE TABLE IF NOT EXISTS perdure_lock_tokens (
    lock_name TEXT NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL
);

-- The workers on this database, with the time of their last heartbeat.
CREATE TABLE IF NOT EXISTS perdure_workers (
    worker_id TEXT NOT NULL PRIMARY KEY,
    started_at TIMESTAMP NOT NULL,
    beat_at TIMESTAMP NOT NULL,
    info TEXT
);
CREATE INDEX idx_perdure_workers_beat ON perdure_workers (beat_at);

-- migrate:down

DROP TABLE IF EXISTS perdure_workers;
DROP TABLE IF EXISTS perdure_lock_tokens;
