-- migrate:up

-- Only own timers and waits are expired: Edda and Romancy leave framework empty and expire their own.
ALTER TABLE workflow_timer_subscriptions ADD COLUMN framework TEXT;
CREATE INDEX idx_timers_due ON workflow_timer_subscriptions (framework, expires_at, id);
ALTER TABLE channel_subscriptions ADD COLUMN framework TEXT;
CREATE INDEX idx_subscriptions_due ON channel_subscriptions (framework, timeout_at, id);

-- Messages are read in order of id and removed by age.
CREATE INDEX idx_channel_messages_order ON channel_messages (channel, id);
CREATE INDEX idx_channel_messages_retention ON channel_messages (published_at, id);

-- Publishing marks the channel. Edda and Romancy do not mark it, and leave framework empty: a sweep looks for those
-- messages and marks their channels.
ALTER TABLE channel_messages ADD COLUMN framework TEXT;
CREATE INDEX idx_channel_messages_family ON channel_messages (id) WHERE framework IS NULL;

-- The waiting subscribers of a channel, and the mode it is used in.
CREATE INDEX idx_subscriptions_waiting ON channel_subscriptions (channel, mode, activity_id);

-- Rows that are deleted with an instance are found by it.
CREATE INDEX idx_channel_delivery_cursors_instance ON channel_delivery_cursors (instance_id);

-- The members of a group in the order of joining.
CREATE INDEX idx_group_memberships_order ON workflow_group_memberships (group_name, id);

-- Publishers and subscribers of a channel queue on its row, so that a lower id never appears after a higher one.
-- dirty_at: something was published that may not have been delivered to every subscriber yet.
CREATE TABLE IF NOT EXISTS perdure_channels (
    channel TEXT NOT NULL PRIMARY KEY,
    dirty_at TEXT
);
CREATE INDEX idx_perdure_channels_dirty ON perdure_channels (dirty_at, channel);

-- What was published under a sender's own id, so that sending it again stores nothing, even after the message was
-- removed.
CREATE TABLE IF NOT EXISTS perdure_message_keys (
    source TEXT NOT NULL,
    message_id TEXT NOT NULL,
    id INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (source, message_id)
);
CREATE INDEX idx_perdure_message_keys_created ON perdure_message_keys (created_at);

-- migrate:down

DROP TABLE IF EXISTS perdure_message_keys;
DROP TABLE IF EXISTS perdure_channels;
DROP INDEX idx_group_memberships_order;
DROP INDEX idx_channel_delivery_cursors_instance;
DROP INDEX idx_subscriptions_waiting;
DROP INDEX idx_channel_messages_family;
ALTER TABLE channel_messages DROP COLUMN framework;
DROP INDEX idx_channel_messages_retention;
DROP INDEX idx_channel_messages_order;
DROP INDEX idx_subscriptions_due;
ALTER TABLE channel_subscriptions DROP COLUMN framework;
DROP INDEX idx_timers_due;
ALTER TABLE workflow_timer_subscriptions DROP COLUMN framework;
