-- migrate:up

-- Indexes that no query needs, and that every write pays for: claims, waits, wake-ups and ends of runs, steps, messages.
-- idx_instances_lease and idx_instances_listing_status serve what idx_instances_lock_expires and idx_instances_resumable
-- did, also for other frameworks; the others have few different values, or order what is read in another order.
-- idx_instances_workflow stays, because the foreign key to the definitions searches by it.
DROP INDEX IF EXISTS idx_instances_owner;
DROP INDEX IF EXISTS idx_instances_hash;
DROP INDEX IF EXISTS idx_instances_lock_expires;
DROP INDEX IF EXISTS idx_instances_resumable;
DROP INDEX IF EXISTS idx_history_created;
DROP INDEX IF EXISTS idx_channel_messages_channel;

-- A run changes its row with every step. With half of each page free these updates stay within the page (HOT) and write
-- to no index, and the space of earlier versions is used again: with 15 % free, every fourth update did not.
ALTER TABLE workflow_instances SET (fillfactor = 50);

-- migrate:down

ALTER TABLE workflow_instances SET (fillfactor = 85);
CREATE INDEX IF NOT EXISTS idx_channel_messages_channel ON channel_messages (channel, published_at);
CREATE INDEX IF NOT EXISTS idx_history_created ON workflow_history (created_at);
CREATE INDEX IF NOT EXISTS idx_instances_resumable ON workflow_instances (status, locked_by);
CREATE INDEX IF NOT EXISTS idx_instances_lock_expires ON workflow_instances (lock_expires_at);
CREATE INDEX IF NOT EXISTS idx_instances_hash ON workflow_instances (source_hash);
CREATE INDEX IF NOT EXISTS idx_instances_owner ON workflow_instances (owner_service);
