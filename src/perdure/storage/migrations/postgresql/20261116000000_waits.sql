-- migrate:up

-- Every wait of a run is a row of its own, in the order of registration. The columns of channel_subscriptions that hold
-- a wait are for Edda and Romancy only, which therefore never deliver to our runs. match_key is the digest of the
-- values that a message must have; NULL matches any message.
CREATE TABLE IF NOT EXISTS perdure_waits (
    id BIGSERIAL PRIMARY KEY,
    instance_id TEXT NOT NULL,
    activity_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    match_key TEXT,
    timeout_at TIMESTAMP,
    UNIQUE (instance_id, activity_id),
    FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE
);
CREATE INDEX idx_perdure_waits_channel ON perdure_waits (channel, match_key);
CREATE INDEX idx_perdure_waits_subscription ON perdure_waits (instance_id, channel, id);
CREATE INDEX idx_perdure_waits_match ON perdure_waits (match_key);
CREATE INDEX idx_perdure_waits_due ON perdure_waits (timeout_at, id);
INSERT INTO perdure_waits (instance_id, activity_id, channel, timeout_at)
SELECT instance_id, activity_id, channel, timeout_at FROM channel_subscriptions
WHERE framework = 'perdure' AND activity_id IS NOT NULL
ORDER BY id
ON CONFLICT (instance_id, activity_id) DO NOTHING;
UPDATE channel_subscriptions SET activity_id = NULL, timeout_at = NULL
WHERE framework = 'perdure' AND activity_id IS NOT NULL;
DROP INDEX idx_subscriptions_due;

-- The sets of JSON paths that the waits of a channel match by. Messages with ids from from_id (exclusive) to to_id have
-- their keys in perdure_message_matches.
CREATE TABLE IF NOT EXISTS perdure_match_paths (
    channel TEXT NOT NULL,
    paths_key TEXT NOT NULL,
    paths TEXT NOT NULL,
    from_id BIGINT NOT NULL,
    to_id BIGINT NOT NULL,
    PRIMARY KEY (channel, paths_key)
);

-- The keys of messages: one for each set of paths of the channel, if the message has values at all of them.
CREATE TABLE IF NOT EXISTS perdure_message_matches (
    match_key TEXT NOT NULL,
    message_id BIGINT NOT NULL,
    channel TEXT NOT NULL,
    PRIMARY KEY (match_key, message_id),
    FOREIGN KEY (message_id) REFERENCES channel_messages (id) ON DELETE CASCADE
);
CREATE INDEX idx_perdure_message_matches_channel ON perdure_message_matches (channel, message_id);
CREATE INDEX idx_perdure_message_matches_message ON perdure_message_matches (message_id);

-- Messages that a subscriber took out of turn: they are beyond its cursor. The lowest message of a key is always taken
-- first, so the next message of a key follows the last that was taken by it.
CREATE TABLE IF NOT EXISTS perdure_taken_messages (
    instance_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    message_id BIGINT NOT NULL,
    match_key TEXT,
    PRIMARY KEY (instance_id, channel, message_id),
    FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE
);
CREATE INDEX idx_perdure_taken_messages_key ON perdure_taken_messages (instance_id, channel, match_key, message_id);

-- The last message for which the sweep has found the waits that match.
ALTER TABLE perdure_channels ADD COLUMN swept_id BIGINT NOT NULL DEFAULT 0;

-- migrate:down

ALTER TABLE perdure_channels DROP COLUMN swept_id;
DROP TABLE IF EXISTS perdure_taken_messages;
DROP TABLE IF EXISTS perdure_message_matches;
DROP TABLE IF EXISTS perdure_match_paths;
CREATE INDEX idx_subscriptions_due ON channel_subscriptions (framework, timeout_at, id);
-- A subscription holds one wait: the first of its channel.
UPDATE channel_subscriptions
SET activity_id = (SELECT w.activity_id FROM perdure_waits w
                   WHERE w.instance_id = channel_subscriptions.instance_id
                     AND w.channel = channel_subscriptions.channel ORDER BY w.id LIMIT 1),
    timeout_at = (SELECT w.timeout_at FROM perdure_waits w
                  WHERE w.instance_id = channel_subscriptions.instance_id
                    AND w.channel = channel_subscriptions.channel ORDER BY w.id LIMIT 1)
WHERE EXISTS (SELECT 1 FROM perdure_waits w
              WHERE w.instance_id = channel_subscriptions.instance_id AND w.channel = channel_subscriptions.channel);
DROP TABLE IF EXISTS perdure_waits;
