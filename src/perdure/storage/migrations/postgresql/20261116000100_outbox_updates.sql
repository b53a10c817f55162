-- migrate:up

-- When an event last changed. Edda and Romancy leave it empty.
ALTER TABLE outbox_events ADD COLUMN updated_at TIMESTAMP;

-- migrate:down

ALTER TABLE outbox_events DROP COLUMN updated_at;
