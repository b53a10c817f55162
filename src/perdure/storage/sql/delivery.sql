-- waiting
-- Who waits on a channel, whatever its framework.
SELECT s.instance_id, s.channel, s.mode, s.activity_id, {cursor}, s.timeout_at, s.id, s.subscribed_at
  FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
 WHERE s.channel = :channel AND s.mode IN ('broadcast', 'competing') AND s.activity_id IS NOT NULL
   AND {waits(s)}
 ORDER BY s.id LIMIT :limit

-- expired
-- Own waits whose time is up, of waiting instances, the oldest first.
SELECT s.instance_id, s.channel, s.mode, s.activity_id, COALESCE(s.cursor_message_id, 0), s.timeout_at, s.id,
       s.subscribed_at
  FROM channel_subscriptions s {index(idx_subscriptions_due)}
 WHERE s.framework = 'perdure' AND s.timeout_at <= {now} AND s.activity_id IS NOT NULL
   AND {waits(s)}
 ORDER BY s.timeout_at, s.id LIMIT :limit

-- due
-- A wait to end, locked with its instance: its time is up, and the instance waiting and free, or leased to the caller.
SELECT i.workflow_name, s.activity_id, s.timeout_at
  FROM channel_subscriptions s JOIN workflow_instances i ON i.instance_id = s.instance_id
 WHERE s.instance_id = :instance_id AND s.channel = :channel AND s.framework = 'perdure' AND s.timeout_at <= {now}
   AND s.activity_id IS NOT NULL AND {may_wake}
{skip_locked}

-- target
-- A subscriber and its next message, if the subscriber waits and is free, or is leased to the caller.
SELECT i.workflow_name, COALESCE(:activity_id, s.activity_id), s.mode, m.id, m.data_type, m.data, m.data_binary,
       m.metadata, m.published_at
  FROM workflow_instances i JOIN channel_subscriptions s ON s.instance_id = i.instance_id AND s.channel = :channel
       JOIN channel_messages m ON m.channel = s.channel
        AND m.id > CASE s.mode WHEN 'competing' THEN 0 ELSE {cursor} END
 WHERE i.instance_id = :instance_id AND COALESCE(:activity_id, s.activity_id) IS NOT NULL
   AND (s.mode = 'broadcast' OR NOT EXISTS (SELECT 1 FROM channel_message_claims k WHERE k.message_id = m.message_id))
   AND {may_wake}
 ORDER BY m.id LIMIT 1

-- deliver
-- All of a delivery at once; gives what was delivered to whom, and whether it was new to the history. A message of a
-- competing channel goes to whoever locks it first. Only the servers have it, to save round trips.
WITH target AS (
  SELECT i.instance_id, i.workflow_name, s.id AS subscription_id, s.mode,
         COALESCE(:activity_id, s.activity_id) AS activity_id, {cursor} AS after_id
    FROM workflow_instances i JOIN channel_subscriptions s ON s.instance_id = i.instance_id AND s.channel = :channel
   WHERE i.instance_id = :instance_id AND COALESCE(:activity_id, s.activity_id) IS NOT NULL
     AND {may_wake}
  FOR UPDATE SKIP LOCKED),
message AS (
  SELECT t.*, m.* FROM target t CROSS JOIN LATERAL (
    SELECT id, data_type, data, data_binary, metadata, published_at FROM channel_messages
     WHERE channel = :channel AND id > t.after_id AND t.mode = 'broadcast' ORDER BY id LIMIT 1) m
  UNION ALL
  SELECT t.*, m.* FROM target t CROSS JOIN LATERAL (
    SELECT id, data_type, data, data_binary, metadata, published_at FROM channel_messages q
     WHERE channel = :channel AND t.mode = 'competing'
       AND (SELECT k.message_id FROM channel_message_claims k WHERE k.message_id = q.message_id) IS NULL
     ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) m),
event AS (
  {insert_event}
  SELECT instance_id, activity_id, 'ChannelMessageReceived', data_type,
         concat('{"id": ', id, ', "channel": ', :name::text, ', "channel_name": ', :name::text,
                ', "data": ', COALESCE(data, 'null'), ', "metadata": ', COALESCE(metadata, '{}'),
                ', "published_at": "', {iso(published_at)}, '", "created_at": "', {iso(published_at)}, '"}'),
         data_binary, {now}
    FROM message
  ON CONFLICT (instance_id, activity_id) DO NOTHING RETURNING id),
moved AS (
  UPDATE channel_subscriptions s
     SET activity_id = NULL, timeout_at = NULL,
         cursor_message_id = CASE WHEN m.mode = 'broadcast' AND EXISTS (SELECT 1 FROM event) THEN m.id
                                  ELSE s.cursor_message_id END
    FROM message m WHERE s.id = m.subscription_id),
cursors AS (
  INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
  SELECT :channel, instance_id, id, {now} FROM message WHERE mode = 'broadcast' AND EXISTS (SELECT 1 FROM event)
  ON CONFLICT (channel, instance_id) DO UPDATE SET last_delivered_id = excluded.last_delivered_id, updated_at = {now}),
taken AS (
  DELETE FROM channel_messages q USING message m
   WHERE q.id = m.id AND m.mode = 'competing' AND EXISTS (SELECT 1 FROM event)),
woken AS (
  UPDATE workflow_instances i
     SET status = 'running', updated_at = {now}, current_activity_id = m.activity_id,
         lock_token = i.lock_token + CASE WHEN :token IS NULL THEN 1 ELSE 0 END,
         locked_by = CASE WHEN :token IS NULL THEN NULL ELSE i.locked_by END,
         locked_at = CASE WHEN :token IS NULL THEN NULL ELSE i.locked_at END,
         lock_expires_at = CASE WHEN :token IS NULL THEN NULL ELSE i.lock_expires_at END
    FROM message m WHERE i.instance_id = m.instance_id)
SELECT workflow_name, activity_id, id, (SELECT count(*) FROM event) FROM message

-- deliver [mysql]
-- Differs because a CTE cannot write: variables of the session carry what was found from part to part, in one packet.
SET @mode = NULL, @message = NULL;
SELECT i.workflow_name, COALESCE(:activity_id, s.activity_id), s.mode, {cursor}
  INTO @workflow, @activity, @mode, @after
  FROM workflow_instances i JOIN channel_subscriptions s ON s.instance_id = i.instance_id AND s.channel = :channel
 WHERE i.instance_id = :instance_id AND COALESCE(:activity_id, s.activity_id) IS NOT NULL
   AND {may_wake}
   FOR UPDATE SKIP LOCKED;
SELECT id INTO @message FROM channel_messages {index(idx_channel_messages_order)}
 WHERE @mode = 'broadcast' AND channel = :channel AND id > @after ORDER BY channel, id LIMIT 1;
SELECT m.id INTO @message FROM channel_messages m {index(idx_channel_messages_order)}
 WHERE @mode = 'competing' AND m.channel = :channel
   AND (SELECT k.message_id FROM channel_message_claims k WHERE k.message_id = m.message_id) IS NULL
 ORDER BY m.channel, m.id LIMIT 1 FOR UPDATE SKIP LOCKED;
{insert_event}
SELECT :instance_id, @activity, 'ChannelMessageReceived', m.data_type,
       CONCAT('{"id": ', m.id, ', "channel": ', :name, ', "channel_name": ', :name,
              ', "data": ', COALESCE(m.data, 'null'), ', "metadata": ', COALESCE(m.metadata, '{}'),
              ', "published_at": "', {iso(m.published_at)}, '", "created_at": "', {iso(m.published_at)}, '"}'),
       m.data_binary, {now}
  FROM channel_messages m
 WHERE m.id = @message AND NOT EXISTS (SELECT 1 FROM workflow_history h
                                        WHERE h.instance_id = :instance_id AND h.activity_id = @activity);
SET @fresh = ROW_COUNT();
UPDATE channel_subscriptions
   SET activity_id = NULL, timeout_at = NULL,
       cursor_message_id = CASE WHEN @fresh AND mode = 'broadcast' THEN @message ELSE cursor_message_id END
 WHERE instance_id = :instance_id AND channel = :channel AND @message IS NOT NULL;
INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
SELECT :channel, :instance_id, @message, {now} FROM DUAL WHERE @mode = 'broadcast' AND @message IS NOT NULL AND @fresh
ON DUPLICATE KEY UPDATE last_delivered_id = @message, updated_at = {now};
DELETE FROM channel_messages WHERE id = @message AND @mode = 'competing' AND @fresh;
UPDATE workflow_instances
   SET status = 'running', updated_at = {now}, current_activity_id = @activity,
       lock_token = lock_token + CASE WHEN :token IS NULL THEN 1 ELSE 0 END,
       locked_by = CASE WHEN :token IS NOT NULL THEN locked_by END,
       locked_at = CASE WHEN :token IS NOT NULL THEN locked_at END,
       lock_expires_at = CASE WHEN :token IS NOT NULL THEN lock_expires_at END
 WHERE instance_id = :instance_id AND @message IS NOT NULL;
SELECT @workflow, @activity, @message, @fresh FROM DUAL WHERE @message IS NOT NULL

-- dirty
-- Channels that may have something to deliver, the longest marked first.
SELECT channel FROM perdure_channels WHERE dirty_at IS NOT NULL ORDER BY dirty_at, {ordinal(channel)} LIMIT :limit

-- behind
-- Free subscribers that wait while a message of their broadcast channel is pending.
SELECT s.channel, s.instance_id FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
 WHERE s.channel {any(:channels)} AND s.mode = 'broadcast' AND s.activity_id IS NOT NULL
   AND {waits_free(s)}
   AND {newest(s)} > {cursor}
 LIMIT :limit

-- backlog
-- Which of these channels have a message that nobody has claimed.
SELECT p.channel FROM perdure_channels p WHERE p.channel {any(:channels)} AND {unclaimed(p)} IS NOT NULL

-- idle
-- Free subscribers that wait on competing channels.
SELECT s.channel, s.instance_id FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
 WHERE s.channel {any(:channels)} AND s.mode = 'competing' AND s.activity_id IS NOT NULL
   AND {waits_free(s)} LIMIT :limit

-- seize
-- Which of these channels nobody is publishing to; they are locked, so nobody can.
SELECT channel FROM perdure_channels WHERE channel {any(:channels)} ORDER BY channel {skip_locked}

-- unserved
-- Which of these channels have a subscriber that waits, free or not, and a message for it.
SELECT p.channel FROM perdure_channels p
 WHERE p.channel {any(:channels)} AND (
       (SELECT s.id FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
         WHERE s.channel = p.channel AND s.mode = 'broadcast' AND s.activity_id IS NOT NULL
           AND {waits(s)}
           AND {newest(s)} > {cursor} LIMIT 1) IS NOT NULL
    OR (SELECT s.id FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
         WHERE s.channel = p.channel AND s.mode = 'competing' AND s.activity_id IS NOT NULL
           AND {waits(s)} LIMIT 1) IS NOT NULL
       AND {unclaimed(p)} IS NOT NULL)

-- clean
-- These channels have nothing to deliver.
UPDATE perdure_channels SET dirty_at = NULL WHERE channel {any(:channels)}

-- requeue
-- These channels have something left, which comes after what the others have.
UPDATE perdure_channels SET dirty_at = {now} WHERE channel {any(:channels)}

-- strange
-- Messages of the rest of the family that nobody here has seen.
SELECT message_id, channel FROM channel_messages WHERE framework IS NULL ORDER BY id LIMIT :limit

-- adopt
-- They are seen.
UPDATE channel_messages SET framework = 'family' WHERE message_id {any(:ids)}
