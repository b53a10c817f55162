-- migrate:up

-- The fencing token, which grows each time a worker takes the run.
ALTER TABLE workflow_instances ADD COLUMN lock_token INTEGER NOT NULL DEFAULT 0;

-- The time from which a worker may take the run; NULL while it waits and after it has ended. SQLite can't add a stored
-- column, and needs none: an index holds the value.
ALTER TABLE workflow_instances ADD COLUMN claimable_at TEXT GENERATED ALWAYS AS (
    CASE WHEN status IN ('running', 'compensating') THEN
        CASE WHEN locked_by IS NULL THEN started_at ELSE COALESCE(lock_expires_at, started_at) END
    END
) VIRTUAL;

-- When the run ended, for retention.
ALTER TABLE workflow_instances ADD COLUMN finished_at TEXT GENERATED ALWAYS AS (
    CASE WHEN status IN ('completed', 'failed', 'cancelled', 'recurred') THEN updated_at END
) VIRTUAL;

CREATE INDEX idx_instances_claimable ON workflow_instances (framework, claimable_at, instance_id);
CREATE INDEX idx_instances_claimable_name ON workflow_instances (framework, workflow_name, claimable_at, instance_id);
CREATE INDEX idx_instances_listing ON workflow_instances (framework, started_at, instance_id);
CREATE INDEX idx_instances_listing_status ON workflow_instances (framework, status, started_at, instance_id);
CREATE INDEX idx_instances_lease ON workflow_instances (framework, lock_expires_at);
CREATE INDEX idx_instances_finished ON workflow_instances (framework, finished_at, instance_id);

-- migrate:down

DROP INDEX idx_instances_finished;
DROP INDEX idx_instances_lease;
DROP INDEX idx_instances_listing_status;
DROP INDEX idx_instances_listing;
DROP INDEX idx_instances_claimable_name;
DROP INDEX idx_instances_claimable;
ALTER TABLE workflow_instances DROP COLUMN finished_at;
ALTER TABLE workflow_instances DROP COLUMN claimable_at;
ALTER TABLE workflow_instances DROP COLUMN lock_token;
