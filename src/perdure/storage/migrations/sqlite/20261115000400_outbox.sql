-- migrate:up

-- A relay claims events for a time; sequence is the order of one source's events, NULL for those of Edda and Romancy.
ALTER TABLE outbox_events ADD COLUMN sequence INTEGER;
ALTER TABLE outbox_events ADD COLUMN claimed_by TEXT;
ALTER TABLE outbox_events ADD COLUMN claim_expires_at TEXT;
ALTER TABLE outbox_events ADD COLUMN next_attempt_at TEXT;
CREATE INDEX idx_outbox_order ON outbox_events (event_source, status, sequence);
CREATE INDEX idx_outbox_listing ON outbox_events (created_at, event_id);

-- The last sequence number drawn. Separate from what relays write: a transaction that adds an event locks this row
-- until its commit, and a relay must not wait for that.
CREATE TABLE IF NOT EXISTS perdure_outbox_sequences (
    event_source TEXT NOT NULL PRIMARY KEY,
    last_sequence INTEGER NOT NULL
);

-- The time from which a source has something to send: the end of a claim or of a back-off; NULL if it has nothing.
CREATE TABLE IF NOT EXISTS perdure_outbox_sources (
    event_source TEXT NOT NULL PRIMARY KEY,
    ready_at TEXT
);
CREATE INDEX idx_perdure_outbox_sources_ready ON perdure_outbox_sources (ready_at, event_source);

-- migrate:down

DROP TABLE IF EXISTS perdure_outbox_sources;
DROP TABLE IF EXISTS perdure_outbox_sequences;
DROP INDEX idx_outbox_listing;
DROP INDEX idx_outbox_order;
ALTER TABLE outbox_events DROP COLUMN next_attempt_at;
ALTER TABLE outbox_events DROP COLUMN claim_expires_at;
ALTER TABLE outbox_events DROP COLUMN claimed_by;
ALTER TABLE outbox_events DROP COLUMN sequence;
