-- migrate:up

-- When an event last changed. Events of the rest of the family leave it empty.
ALTER TABLE outbox_events ADD COLUMN updated_at TIMESTAMP;

-- migrate:down

ALTER TABLE outbox_events DROP COLUMN updated_at;
