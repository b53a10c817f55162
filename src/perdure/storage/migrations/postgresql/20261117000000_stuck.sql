-- migrate:up

-- Runs whose attempts end without progress: why, after how many attempts, since when, and when they are retried. A row
-- is void once anything has happened to its run after progressed_at.
CREATE TABLE IF NOT EXISTS perdure_stuck (
    instance_id TEXT NOT NULL PRIMARY KEY,
    reason TEXT NOT NULL,
    tries BIGINT NOT NULL,
    since TIMESTAMP NOT NULL,
    next_retry_at TIMESTAMP NOT NULL,
    progressed_at TIMESTAMP NOT NULL,
    FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE
);
CREATE INDEX idx_perdure_stuck_since ON perdure_stuck (since, instance_id COLLATE "C");

-- The runs of one workflow in one state, newest first.
CREATE INDEX idx_instances_listing_workflow
    ON workflow_instances (framework, workflow_name, status, started_at, instance_id COLLATE "C");

-- migrate:down

DROP INDEX idx_instances_listing_workflow;
DROP TABLE IF EXISTS perdure_stuck;
