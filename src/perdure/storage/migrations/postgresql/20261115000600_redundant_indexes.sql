-- migrate:up

-- Indexes that slow down every write and serve no read: duplicates and prefixes of others. idx_instances_updated
-- changed with every step of a run, which prevented those updates from staying within their page. Through
-- idx_instances_locked a renewal read all rows that its worker holds.
DROP INDEX IF EXISTS idx_definitions_name;
DROP INDEX IF EXISTS idx_instances_status;
DROP INDEX IF EXISTS idx_instances_framework;
DROP INDEX IF EXISTS idx_instances_locked;
DROP INDEX IF EXISTS idx_instances_updated;
DROP INDEX IF EXISTS idx_history_instance;
DROP INDEX IF EXISTS idx_history_archive_instance;
DROP INDEX IF EXISTS idx_compensations_instance;
DROP INDEX IF EXISTS idx_timer_subscriptions_instance;
DROP INDEX IF EXISTS idx_group_memberships_group;
DROP INDEX IF EXISTS idx_group_memberships_instance;
DROP INDEX IF EXISTS idx_channel_messages_id;
DROP INDEX IF EXISTS idx_channel_subscriptions_instance;
DROP INDEX IF EXISTS idx_channel_subscriptions_channel;
DROP INDEX IF EXISTS idx_channel_subscriptions_waiting;
DROP INDEX IF EXISTS idx_channel_delivery_cursors_channel;

-- migrate:down

CREATE INDEX IF NOT EXISTS idx_channel_delivery_cursors_channel ON channel_delivery_cursors (channel);
CREATE INDEX IF NOT EXISTS idx_channel_subscriptions_waiting ON channel_subscriptions (channel, activity_id);
CREATE INDEX IF NOT EXISTS idx_channel_subscriptions_channel ON channel_subscriptions (channel);
CREATE INDEX IF NOT EXISTS idx_channel_subscriptions_instance ON channel_subscriptions (instance_id);
CREATE INDEX IF NOT EXISTS idx_channel_messages_id ON channel_messages (id);
CREATE INDEX IF NOT EXISTS idx_group_memberships_instance ON workflow_group_memberships (instance_id);
CREATE INDEX IF NOT EXISTS idx_group_memberships_group ON workflow_group_memberships (group_name);
CREATE INDEX IF NOT EXISTS idx_timer_subscriptions_instance ON workflow_timer_subscriptions (instance_id);
CREATE INDEX IF NOT EXISTS idx_compensations_instance ON workflow_compensations (instance_id, created_at DESC);
CREATE INDEX IF NOT EXISTS idx_history_archive_instance ON workflow_history_archive (instance_id);
CREATE INDEX IF NOT EXISTS idx_history_instance ON workflow_history (instance_id, activity_id);
CREATE INDEX IF NOT EXISTS idx_instances_updated ON workflow_instances (updated_at);
CREATE INDEX IF NOT EXISTS idx_instances_locked ON workflow_instances (locked_by, locked_at);
CREATE INDEX IF NOT EXISTS idx_instances_framework ON workflow_instances (framework);
CREATE INDEX IF NOT EXISTS idx_instances_status ON workflow_instances (status);
CREATE INDEX IF NOT EXISTS idx_definitions_name ON workflow_definitions (workflow_name);
