-- lock
-- Queue on a channel until the commit: its publishers and subscribers follow one another.
INSERT INTO perdure_channels (channel) VALUES (:channel)
{on_conflict_do_update(channel)} channel = :channel

-- lock [postgresql]
-- Differs because a session that has to wait queues for the channel.
INSERT INTO perdure_channels (channel) SELECT :channel WHERE {queued}
ON CONFLICT (channel) DO UPDATE SET channel = :channel

-- lock_many
-- Lock many channels, in the given order.
INSERT INTO perdure_channels (channel) SELECT value FROM json_each(:channels) WHERE TRUE
{on_conflict_do_update(channel)} channel = excluded.channel

-- lock_many [postgresql]
-- Differs because a list is an array.
INSERT INTO perdure_channels (channel) SELECT * FROM unnest(:channels::text[])
{on_conflict_do_update(channel)} channel = excluded.channel

-- lock_many [mysql]
-- Differs because a list is written out.
INSERT INTO perdure_channels (channel) VALUES :rows {on_conflict_do_update(channel)} channel = VALUES(channel)

-- mark
-- Lock a channel, and mark that there may be something to deliver.
{mark}

-- publish -> id
-- Insert a message, its id drawn after the channel was locked: a lower id never appears after a higher one.
{mark};
INSERT INTO channel_messages (channel, message_id, data_type, data, data_binary, metadata, published_at, framework)
VALUES (:channel, :message_id, :data_type, :data, :data_binary, :metadata, {now}, 'perdure') {returning(id)}

-- publish [postgresql]
-- Differs because a CTE makes it one round trip, with the notification; the id is drawn for the row that the lock
-- returns.
WITH locked AS ({queued_mark} RETURNING channel),
message AS (
  INSERT INTO channel_messages (channel, message_id, data_type, data, data_binary, metadata, published_at, framework)
  SELECT channel, :message_id, :data_type, :data, :data_binary::bytea, :metadata, {now}, 'perdure' FROM locked
  RETURNING id)
SELECT m.id FROM message m WHERE {published(m)} IS NOT NULL

-- publish_once -> id
-- Insert a message under its sender's key, unless the key is known. Until the message has its id, the key's is 0.
{mark};
INSERT INTO perdure_message_keys (source, message_id, id, created_at) VALUES (:source, :key, 0, {now})
{on_conflict_do_nothing(source, message_id)};
INSERT INTO channel_messages (channel, message_id, data_type, data, data_binary, metadata, published_at, framework)
SELECT :channel, :message_id, :data_type, :data, :data_binary, :metadata, {now}, 'perdure' FROM perdure_message_keys
 WHERE source = :source AND message_id = :key AND id = 0 {on_conflict_do_nothing(message_id)};
UPDATE perdure_message_keys SET id = (SELECT id FROM channel_messages WHERE message_id = :message_id)
 WHERE source = :source AND message_id = :key AND id = 0;
SELECT id FROM perdure_message_keys WHERE source = :source AND message_id = :key

-- publish_once [postgresql]
-- Differs because a CTE makes it one round trip, with the notification. Returns nothing if another transaction stored
-- the key meanwhile.
WITH locked AS ({queued_mark} RETURNING channel),
known AS (SELECT id FROM perdure_message_keys WHERE source = :source AND message_id = :key),
named AS (SELECT id FROM channel_messages WHERE message_id = :message_id),
fresh AS (
  INSERT INTO perdure_message_keys (source, message_id, id, created_at)
  SELECT :source, :key,
         COALESCE((SELECT id FROM named), nextval(pg_get_serial_sequence('channel_messages', 'id'))), {now} FROM locked
   WHERE NOT EXISTS (SELECT 1 FROM known)
  ON CONFLICT (source, message_id) DO NOTHING RETURNING id),
message AS (
  INSERT INTO channel_messages
         (id, channel, message_id, data_type, data, data_binary, metadata, published_at, framework)
  SELECT id, :channel, :message_id, :data_type::text, :data::text, :data_binary::bytea, :metadata::text, {now},
         'perdure'
    FROM fresh WHERE NOT EXISTS (SELECT 1 FROM named))
SELECT f.id FROM (SELECT id FROM fresh UNION ALL SELECT id FROM known) f WHERE {published(f)} IS NOT NULL

-- key -> id
-- Return what was published under a key.
SELECT id FROM perdure_message_keys WHERE source = :source AND message_id = :key

-- named -> id
-- Return the message with this text id.
SELECT id FROM channel_messages WHERE message_id = :message_id

-- pending -> id, channel, message_id, data_type, data, data_binary, metadata, published_at
-- Return the messages of a channel after an id that a subscriber has not received out of turn, in order.
SELECT m.id, m.channel, m.message_id, m.data_type, m.data, m.data_binary, m.metadata, m.published_at
  FROM channel_messages m {index(idx_channel_messages_order)}
 WHERE m.channel = :channel AND m.id > :after_id
   AND (SELECT x.message_id FROM perdure_taken_messages x
         WHERE x.instance_id = :instance_id AND x.channel = :channel AND x.message_id = m.id) IS NULL
 ORDER BY m.id LIMIT :limit

-- page -> id, channel, message_id, data_type, data, data_binary, metadata, published_at
-- Return the messages of a channel after an id, in order.
SELECT id, channel, message_id, data_type, data, data_binary, metadata, published_at
  FROM channel_messages {index(idx_channel_messages_order)}
 WHERE channel = :channel AND id > :after_id ORDER BY id LIMIT :limit

-- unclaimed -> id, channel, message_id, data_type, data, data_binary, metadata, published_at
-- Return the messages of a channel that are not claimed, in order.
SELECT id, channel, message_id, data_type, data, data_binary, metadata, published_at
  FROM channel_messages m {index(idx_channel_messages_order)}
 WHERE channel = :channel
   AND (SELECT k.message_id FROM channel_message_claims k WHERE k.message_id = m.message_id) IS NULL
 ORDER BY id LIMIT :limit

-- subscription -> instance_id, channel, mode, activity_id, cursor_id, timeout_at, id, subscribed_at
-- Return one subscription, with the further of its two cursors.
SELECT s.instance_id, s.channel, s.mode, {first_wait}, {cursor}, {first_timeout}, s.id,
       s.subscribed_at
  FROM channel_subscriptions s WHERE s.instance_id = :instance_id AND s.channel = :channel

-- modes -> own, other
-- Return how an instance uses a channel, and whether a live subscriber uses it in the other mode.
SELECT (SELECT mode FROM channel_subscriptions WHERE instance_id = :instance_id AND channel = :channel),
       (SELECT s.mode FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
         WHERE s.channel = :channel AND s.mode = :other
           AND (SELECT i.finished_at FROM workflow_instances i WHERE i.instance_id = s.instance_id) IS NULL LIMIT 1)

-- mode -> mode
-- Return how live subscribers use a channel.
SELECT s.mode FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
 WHERE s.channel = :channel
   AND (SELECT i.finished_at FROM workflow_instances i WHERE i.instance_id = s.instance_id) IS NULL
 ORDER BY s.mode LIMIT 1

-- subscribe
-- Insert a subscriber, from the first message or from the next one; both cursor tables start there.
INSERT INTO channel_subscriptions (instance_id, channel, mode, cursor_message_id, subscribed_at, framework)
SELECT i.instance_id, :channel, :mode,
       CASE WHEN :from_start = 1 THEN 0
            ELSE (SELECT COALESCE(MAX(m.id), 0) FROM channel_messages m WHERE m.channel = :channel) END,
       {now}, i.framework
  FROM workflow_instances i WHERE i.instance_id = :instance_id {on_conflict_do_nothing(instance_id, channel)};
INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
SELECT channel, instance_id, cursor_message_id, {now} FROM channel_subscriptions
 WHERE instance_id = :instance_id AND channel = :channel AND :mode = 'broadcast'
{on_conflict_do_nothing(channel, instance_id)}

-- subscriptions -> instance_id, channel, mode, cursor_id
-- Return the subscriptions of many instances, each to channels of its own.
SELECT s.instance_id, s.channel, s.mode, {cursor} FROM json_each(:pairs) p CROSS JOIN channel_subscriptions s
 WHERE s.instance_id = json_extract(p.value, '$[0]') AND s.channel = json_extract(p.value, '$[1]')

-- subscriptions [postgresql]
-- Differs because a list is an array.
SELECT s.instance_id, s.channel, s.mode, {cursor}
  FROM unnest(:ids::text[], :channels::text[]) AS p (instance_id, channel)
       CROSS JOIN LATERAL (SELECT * FROM channel_subscriptions
                            WHERE instance_id = p.instance_id AND channel = p.channel LIMIT 1) s

-- subscriptions [mysql]
-- Differs because a list is written out.
SELECT s.instance_id, s.channel, s.mode, {cursor} FROM channel_subscriptions s
 WHERE (s.instance_id, s.channel) {any(:pairs)}

-- states -> channel, newest_id, competing
-- Return the last message of each of these channels, and whether a live subscriber uses the channel in competing mode.
SELECT p.channel, {newest(p)},
       (SELECT s.mode FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
         WHERE s.channel = p.channel AND s.mode = 'competing'
           AND (SELECT i.finished_at FROM workflow_instances i WHERE i.instance_id = s.instance_id) IS NULL LIMIT 1)
  FROM perdure_channels p WHERE p.channel {any(:channels)}

-- subscribe_many
-- Insert subscribers, each from a message on. Only for databases with the feature `round_trips`.
INSERT INTO channel_subscriptions (instance_id, channel, mode, cursor_message_id, subscribed_at, framework)
SELECT s.instance_id, s.channel, s.mode, s.cursor_id, {now}, s.framework
  FROM unnest(:ids::text[], :channels::text[], :modes::text[], :cursors::bigint[], :frameworks::text[])
       AS s (instance_id, channel, mode, cursor_id, framework);
INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
SELECT s.channel, s.instance_id, s.cursor_id, {now}
  FROM unnest(:channels::text[], :ids::text[], :cursors::bigint[]) AS s (channel, instance_id, cursor_id)
{on_conflict_do_nothing(channel, instance_id)}

-- subscribe_many [mysql]
-- Differs because a list is written out.
INSERT INTO channel_subscriptions (instance_id, channel, mode, cursor_message_id, subscribed_at, framework)
VALUES :rows;
INSERT IGNORE INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at) VALUES :places

-- unsubscribe
-- Remove a subscription and its cursors.
DELETE FROM channel_subscriptions WHERE instance_id = :instance_id AND channel = :channel;
DELETE FROM channel_delivery_cursors WHERE instance_id = :instance_id AND channel = :channel;
DELETE FROM perdure_waits WHERE instance_id = :instance_id AND channel = :channel;
DELETE FROM perdure_taken_messages WHERE instance_id = :instance_id AND channel = :channel

-- clear
-- End a subscriber's waits.
DELETE FROM perdure_waits WHERE instance_id = :instance_id AND channel = :channel;
UPDATE channel_subscriptions SET activity_id = NULL, timeout_at = NULL
 WHERE instance_id = :instance_id AND channel = :channel AND activity_id IS NOT NULL

-- advance -> count
-- Move both cursors, never backwards.
-- [answer]
UPDATE channel_subscriptions SET cursor_message_id = {greatest(COALESCE(cursor_message_id, 0), :message_id)}
 WHERE instance_id = :instance_id AND channel = :channel;
INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
SELECT channel, instance_id, cursor_message_id, {now} FROM channel_subscriptions
 WHERE instance_id = :instance_id AND channel = :channel
{on_conflict_do_update(channel, instance_id)}
  last_delivered_id = {greatest(channel_delivery_cursors.last_delivered_id, :message_id)}, updated_at = {now}

-- claim -> count
-- Claim a message for one instance; nothing if it is claimed or removed. The lock prevents its removal meanwhile.
INSERT INTO channel_message_claims (message_id, instance_id, claimed_at)
SELECT m.message_id, :instance_id, {now} FROM channel_messages m WHERE m.id = :message_id {for_update}
{on_conflict_do_nothing(message_id)}

-- claimant -> instance_id
-- Return the claimant of a message.
SELECT k.instance_id FROM channel_message_claims k JOIN channel_messages m ON m.message_id = k.message_id
 WHERE m.id = :message_id

-- delete
-- Remove a message; its claim is removed with it.
DELETE FROM channel_messages WHERE id = :message_id

-- old -> id, message_id, channel, published_at
-- Return the messages that have expired, the oldest first.
SELECT id, message_id, channel, published_at FROM channel_messages
 WHERE published_at < {ago(:age_sec)} AND published_at >= :after_at AND (published_at > :after_at OR id > :after_id)
 ORDER BY published_at, id LIMIT :limit

-- needs -> mode, cursor_id
-- Return the cursor of the slowest live subscriber of each mode.
SELECT s.mode, MIN({cursor})
  FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
 WHERE s.channel = :channel
   AND (SELECT i.finished_at FROM workflow_instances i WHERE i.instance_id = s.instance_id) IS NULL
 GROUP BY s.mode

-- claimed -> message_id
-- Return which of these messages are claimed.
SELECT message_id FROM channel_message_claims WHERE message_id {any(:ids)}

-- addressed -> found
-- Return whether one of these instances is live.
SELECT 1 FROM workflow_instances WHERE instance_id {any(:ids)} AND finished_at IS NULL LIMIT 1

-- purge
-- Remove messages.
DELETE {from_index(channel_messages, message_id, channel)} WHERE message_id {any(:ids)}

-- last_key -> until
-- Return the end of a page of expired keys.
SELECT MAX(created_at) FROM (
  SELECT created_at FROM perdure_message_keys WHERE created_at < {ago(:age_sec)} ORDER BY created_at LIMIT :limit) page

-- forget_keys -> count
-- Remove keys up to a time.
DELETE FROM perdure_message_keys WHERE created_at <= :until

-- forget_keys [mysql]
-- Differs because MySQL would wait for the first key after that time, too, if its message is not committed.
DELETE k FROM (SELECT source, message_id FROM perdure_message_keys {index(idx_perdure_message_keys_created)}
                WHERE created_at <= :until LIMIT :limit FOR UPDATE SKIP LOCKED) old
       STRAIGHT_JOIN perdure_message_keys k {index(PRIMARY)} ON k.source = old.source AND k.message_id = old.message_id

-- unused -> channel, unused
-- Return a page of channels after one of them, each with whether it has no subscriber and no message.
SELECT channel, CASE WHEN dirty_at IS NULL
                      AND (SELECT s.id FROM channel_subscriptions s WHERE s.channel = p.channel LIMIT 1) IS NULL
                      AND (SELECT m.id FROM channel_messages m WHERE m.channel = p.channel LIMIT 1) IS NULL
                     THEN 1 ELSE 0 END
  FROM perdure_channels p WHERE channel > :after ORDER BY channel LIMIT :limit

-- forget
-- Remove the locks of channels that are still unused: a message would have marked its own. Instances that subscribed
-- meanwhile and wait need the sets of paths; a new subscriber waits for the locks, and stores its own set again.
DELETE {from_index(perdure_channels, PRIMARY, dirty_at)}
 WHERE channel {any(:channels)} AND CASE WHEN dirty_at IS NULL THEN 1 END = 1;
DELETE {from_index(perdure_match_paths, PRIMARY, to_id)} WHERE channel {any(:channels)}
   AND (SELECT p.channel FROM perdure_channels p WHERE p.channel = perdure_match_paths.channel) IS NULL
   AND (SELECT s.id FROM channel_subscriptions s WHERE s.channel = perdure_match_paths.channel LIMIT 1) IS NULL
