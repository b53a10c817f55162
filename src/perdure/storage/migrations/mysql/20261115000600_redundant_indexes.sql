-- migrate:up

-- Indexes that slow down every write and serve no read: duplicates and prefixes of others. Those that a foreign key
-- used have a replacement by now. idx_instances_updated changed with every step of a run, and no query uses
-- idx_instances_locked. The foreign key's own index begins like idx_instances_workflow.
DROP INDEX idx_definitions_name ON workflow_definitions;
DROP INDEX idx_instances_status ON workflow_instances;
DROP INDEX idx_instances_framework ON workflow_instances;
DROP INDEX idx_instances_locked ON workflow_instances;
DROP INDEX idx_instances_workflow ON workflow_instances;
DROP INDEX idx_instances_updated ON workflow_instances;
DROP INDEX idx_history_instance ON workflow_history;
DROP INDEX idx_history_archive_instance ON workflow_history_archive;
DROP INDEX idx_compensations_instance ON workflow_compensations;
DROP INDEX idx_timer_subscriptions_instance ON workflow_timer_subscriptions;
DROP INDEX idx_group_memberships_group ON workflow_group_memberships;
DROP INDEX idx_group_memberships_instance ON workflow_group_memberships;
DROP INDEX idx_channel_messages_id ON channel_messages;
DROP INDEX idx_channel_subscriptions_instance ON channel_subscriptions;
DROP INDEX idx_channel_subscriptions_channel ON channel_subscriptions;
DROP INDEX idx_channel_subscriptions_waiting ON channel_subscriptions;
DROP INDEX idx_channel_delivery_cursors_channel ON channel_delivery_cursors;

-- migrate:down

CREATE INDEX idx_channel_delivery_cursors_channel ON channel_delivery_cursors (channel);
CREATE INDEX idx_channel_subscriptions_waiting ON channel_subscriptions (channel, activity_id);
CREATE INDEX idx_channel_subscriptions_channel ON channel_subscriptions (channel);
CREATE INDEX idx_channel_subscriptions_instance ON channel_subscriptions (instance_id);
CREATE INDEX idx_channel_messages_id ON channel_messages (id);
CREATE INDEX idx_group_memberships_instance ON workflow_group_memberships (instance_id);
CREATE INDEX idx_group_memberships_group ON workflow_group_memberships (group_name);
CREATE INDEX idx_timer_subscriptions_instance ON workflow_timer_subscriptions (instance_id);
CREATE INDEX idx_compensations_instance ON workflow_compensations (instance_id, created_at DESC);
CREATE INDEX idx_history_archive_instance ON workflow_history_archive (instance_id);
CREATE INDEX idx_history_instance ON workflow_history (instance_id, activity_id);
CREATE INDEX idx_instances_updated ON workflow_instances (updated_at);
CREATE INDEX idx_instances_locked ON workflow_instances (locked_by, locked_at);
CREATE INDEX idx_instances_workflow ON workflow_instances (workflow_name);
CREATE INDEX idx_instances_framework ON workflow_instances (framework);
CREATE INDEX idx_instances_status ON workflow_instances (status);
CREATE INDEX idx_definitions_name ON workflow_definitions (workflow_name);
