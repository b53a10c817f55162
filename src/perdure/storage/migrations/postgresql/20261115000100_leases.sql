-- migrate:up

-- lock_token: the fencing token, which grows each time a worker takes the run.
-- claimable_at: the time from which a worker may take the run; NULL while it waits and after it has ended.
-- finished_at: when the run ended, for retention.
-- The fill factor leaves space in every page, so that the next version of a row fits beside the last one. All in one
-- statement, because each statement rewrites the table.
ALTER TABLE workflow_instances
    SET (fillfactor = 85),
    ADD COLUMN lock_token BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN claimable_at TIMESTAMP GENERATED ALWAYS AS (
        CASE WHEN status IN ('running', 'compensating') THEN
            CASE WHEN locked_by IS NULL THEN started_at ELSE COALESCE(lock_expires_at, started_at) END
        END
    ) STORED,
    ADD COLUMN finished_at TIMESTAMP GENERATED ALWAYS AS (
        CASE WHEN status IN ('completed', 'failed', 'cancelled', 'recurred') THEN updated_at END
    ) STORED;

CREATE INDEX idx_instances_claimable ON workflow_instances (framework, claimable_at, instance_id COLLATE "C");
CREATE INDEX idx_instances_claimable_name ON workflow_instances (framework, workflow_name, claimable_at, instance_id COLLATE "C");
-- In the order of code points, as on every other database, whatever the database's own collation is.
CREATE INDEX idx_instances_listing ON workflow_instances (framework, started_at, instance_id COLLATE "C");
CREATE INDEX idx_instances_listing_status
    ON workflow_instances (framework, status, started_at, instance_id COLLATE "C");
CREATE INDEX idx_instances_lease ON workflow_instances (framework, lock_expires_at);
CREATE INDEX idx_instances_finished ON workflow_instances (framework, finished_at, instance_id COLLATE "C");

-- migrate:down

DROP INDEX idx_instances_finished;
DROP INDEX idx_instances_lease;
DROP INDEX idx_instances_listing_status;
DROP INDEX idx_instances_listing;
DROP INDEX idx_instances_claimable_name;
DROP INDEX idx_instances_claimable;
ALTER TABLE workflow_instances
    DROP COLUMN finished_at,
    DROP COLUMN claimable_at,
    DROP COLUMN lock_token,
    RESET (fillfactor);
