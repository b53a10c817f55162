-- migrate:up

-- Indexes that no query needs, and that every write pays for: claims, waits, wake-ups and ends of runs, steps, messages.
-- idx_instances_lease and idx_instances_listing_status serve what idx_instances_lock_expires and idx_instances_resumable
-- did, also for other frameworks; the others have few different values, or order what is read in another order.
-- The foreign key to the definitions has its own index.
DROP INDEX idx_instances_owner ON workflow_instances;
DROP INDEX idx_instances_hash ON workflow_instances;
DROP INDEX idx_instances_lock_expires ON workflow_instances;
DROP INDEX idx_instances_resumable ON workflow_instances;
DROP INDEX idx_history_created ON workflow_history;
DROP INDEX idx_channel_messages_channel ON channel_messages;

-- migrate:down

CREATE INDEX idx_channel_messages_channel ON channel_messages (channel, published_at);
CREATE INDEX idx_history_created ON workflow_history (created_at);
CREATE INDEX idx_instances_resumable ON workflow_instances (status, locked_by);
CREATE INDEX idx_instances_lock_expires ON workflow_instances (lock_expires_at);
CREATE INDEX idx_instances_hash ON workflow_instances (source_hash);
CREATE INDEX idx_instances_owner ON workflow_instances (owner_service);
