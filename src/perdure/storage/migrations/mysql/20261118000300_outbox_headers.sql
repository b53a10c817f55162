-- migrate:up

-- The headers of an event as a JSON object of strings; NULL if there are none. Edda and Romancy leave it empty.
ALTER TABLE outbox_events ADD COLUMN headers MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL;

-- migrate:down

ALTER TABLE outbox_events DROP COLUMN headers;
