-- migrate:up

-- The headers of an event as a JSON object of strings; NULL if there are none. Edda and Romancy leave it empty.
ALTER TABLE outbox_events ADD COLUMN headers TEXT;

-- migrate:down

ALTER TABLE outbox_events DROP COLUMN headers;
