-- migrate:up

-- The headers of a run as a JSON object of strings, such as a tenant or a trace context; NULL if there are none.
ALTER TABLE workflow_instances ADD COLUMN headers TEXT;

-- migrate:down

ALTER TABLE workflow_instances DROP COLUMN headers;
