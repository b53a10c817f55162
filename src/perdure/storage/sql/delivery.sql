-- waiting -> instance_id, channel, mode, activity_id, cursor_id, timeout_at, id, subscribed_at
-- Return the subscribers of any framework that wait on a channel.
SELECT s.instance_id, s.channel, s.mode, {first_wait}, {cursor}, {first_timeout}, s.id, s.subscribed_at
  FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
 WHERE s.channel = :channel AND s.mode IN ('broadcast', 'competing') AND {first_wait} IS NOT NULL
   AND {waits(s)}
 ORDER BY s.id LIMIT :limit

-- expired -> instance_id, channel, mode, activity_id, cursor_id, timeout_at, id, subscribed_at
-- Return own waits of waiting instances that have timed out, the oldest first.
SELECT w.instance_id, w.channel,
       (SELECT s.mode FROM channel_subscriptions s WHERE s.instance_id = w.instance_id AND s.channel = w.channel),
       w.activity_id,
       (SELECT {cursor} FROM channel_subscriptions s WHERE s.instance_id = w.instance_id AND s.channel = w.channel),
       w.timeout_at,
       (SELECT s.id FROM channel_subscriptions s WHERE s.instance_id = w.instance_id AND s.channel = w.channel),
       (SELECT s.subscribed_at FROM channel_subscriptions s
         WHERE s.instance_id = w.instance_id AND s.channel = w.channel)
  FROM perdure_waits w {index(idx_perdure_waits_due)}
 WHERE w.timeout_at <= {now} AND {waits(w)}
 ORDER BY w.timeout_at, w.id LIMIT :limit

-- due -> workflow_name, activity_id, timeout_at
-- Return a wait to end, locked with its instance: it is due, and the instance is waiting and free, or leased to the
-- caller.
SELECT i.workflow_name, w.activity_id, w.timeout_at
  FROM perdure_waits w JOIN workflow_instances i ON i.instance_id = w.instance_id
 WHERE w.instance_id = :instance_id AND w.channel = :channel AND w.timeout_at <= {now}
   AND (w.activity_id = :activity_id OR :activity_id IS NULL) AND {may_wake}
 ORDER BY w.timeout_at, w.id LIMIT 1
{skip_locked}

-- target -> workflow_name, activity_id, mode, message_id, match_key, data, data_binary, metadata, published_at, in_turn
-- Return a subscriber's next message and the wait it is for, if the subscriber waits and is free, or is leased to the
-- caller: of all its waits the one whose message is the lowest, and of those for that message the first. The caller may
-- name its wait. A message is in turn if no other message is left before it.
SELECT i.workflow_name, f.activity_id, s.mode, m.id, f.match_key, m.data, m.data_binary, m.metadata, m.published_at,
       CASE WHEN m.id = {next} THEN 1 ELSE 0 END
  FROM workflow_instances i JOIN channel_subscriptions s ON s.instance_id = i.instance_id AND s.channel = :channel
       JOIN (SELECT 0 AS id, :activity_id AS activity_id, :match_key AS match_key WHERE :activity_id IS NOT NULL
              UNION ALL
             SELECT id, activity_id, match_key FROM perdure_waits
              WHERE instance_id = :instance_id AND channel = :channel AND :activity_id IS NULL
              UNION ALL
             SELECT 0, activity_id, NULL FROM channel_subscriptions
              WHERE instance_id = :instance_id AND channel = :channel AND activity_id IS NOT NULL
                AND :activity_id IS NULL) f
       JOIN channel_messages m ON m.id = CASE WHEN s.mode = 'competing' THEN {unclaimed(s)}
                                              WHEN f.match_key IS NULL THEN {next} ELSE {next_match(f)} END
 WHERE i.instance_id = :instance_id AND {may_wake}
 ORDER BY m.id, f.id LIMIT 1

-- take
-- Record that a subscriber received a message out of turn.
INSERT INTO perdure_taken_messages (instance_id, channel, message_id, match_key)
VALUES (:instance_id, :channel, :message_id, :match_key)

-- deliver -> workflow_name, activity_id, message_id, recorded
-- Deliver in one statement; return what was delivered to whom, and whether it was new to the history. A message of a
-- competing channel goes to the first that locks it. Return nothing if the instance was changed since the statement
-- began, because the statement does not see its current waits. Only the servers have it, to save round trips.
WITH target AS (
  SELECT i.instance_id, i.workflow_name, s.id AS subscription_id, s.mode, s.activity_id AS column_wait,
         {cursor} AS after_id, CASE WHEN s.mode = 'broadcast' THEN {next} END AS next_id
    FROM workflow_instances i JOIN channel_subscriptions s ON s.instance_id = i.instance_id AND s.channel = :channel
   WHERE i.instance_id = :instance_id AND {may_wake}
     AND i.xmin = (SELECT seen.xmin FROM workflow_instances seen WHERE seen.instance_id = :instance_id)
  FOR UPDATE SKIP LOCKED),
wanted AS (
  SELECT t.*, 0::bigint AS wait_id, COALESCE(:activity_id, t.column_wait) AS activity_id, :match_key::text AS match_key
    FROM target t WHERE COALESCE(:activity_id, t.column_wait) IS NOT NULL
  UNION ALL
  SELECT t.*, w.id, w.activity_id, w.match_key FROM target t
    JOIN perdure_waits w ON w.instance_id = t.instance_id AND w.channel = :channel AND :activity_id IS NULL),
found AS (
  SELECT f.*, CASE WHEN f.match_key IS NULL THEN f.next_id ELSE (
           SELECT k.message_id FROM perdure_message_matches k
            WHERE k.match_key = f.match_key
              AND k.message_id > GREATEST(f.after_id, COALESCE(
                    (SELECT MAX(y.message_id) FROM perdure_taken_messages y
                      WHERE y.instance_id = f.instance_id AND y.channel = :channel AND y.match_key = f.match_key), 0))
              AND (SELECT x.message_id FROM perdure_taken_messages x
                    WHERE x.instance_id = f.instance_id AND x.channel = :channel
                      AND x.message_id = k.message_id) IS NULL
            ORDER BY k.match_key, k.message_id LIMIT 1) END AS message_id
    FROM wanted f WHERE f.mode = 'broadcast'
  UNION ALL
  SELECT f.*, m.id FROM wanted f CROSS JOIN LATERAL (
    SELECT id FROM channel_messages q
     WHERE channel = :channel AND f.mode = 'competing'
       AND (SELECT k.message_id FROM channel_message_claims k WHERE k.message_id = q.message_id) IS NULL
     ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) m),
message AS (
  SELECT f.*, m.* FROM found f CROSS JOIN LATERAL (
    SELECT id, data_type, data, data_binary, metadata, published_at FROM channel_messages
     WHERE id = f.message_id) m
   ORDER BY f.message_id, f.wait_id LIMIT 1),
event AS (
  {insert_event}
  SELECT instance_id, activity_id, 'ChannelMessageReceived', data_type,
         concat('{"id": ', id, ', "channel": ', :name::text, ', "channel_name": ', :name::text,
                ', "data": ', COALESCE(data, 'null'), ', "metadata": ', COALESCE(metadata, '{}'),
                ', "published_at": "', {iso(published_at)}, '", "created_at": "', {iso(published_at)}, '"',
                CASE WHEN match_key IS NOT NULL THEN concat(', "match": "', match_key, '"') END, '}'),
         data_binary, {now}
    FROM message
  ON CONFLICT (instance_id, activity_id) DO NOTHING RETURNING id),
moved AS (
  UPDATE channel_subscriptions s
     SET activity_id = NULL, timeout_at = NULL,
         cursor_message_id = CASE WHEN m.id = m.next_id AND EXISTS (SELECT 1 FROM event) THEN m.id
                                  ELSE s.cursor_message_id END
    FROM message m WHERE s.id = m.subscription_id),
ended AS (
  DELETE FROM perdure_waits w USING message m WHERE w.instance_id = m.instance_id AND w.activity_id = m.activity_id),
cursors AS (
  INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
  SELECT :channel, instance_id, id, {now} FROM message WHERE id = next_id AND EXISTS (SELECT 1 FROM event)
  ON CONFLICT (channel, instance_id) DO UPDATE SET last_delivered_id = excluded.last_delivered_id, updated_at = {now}),
had AS (
  INSERT INTO perdure_taken_messages (instance_id, channel, message_id, match_key)
  SELECT instance_id, :channel, id, match_key FROM message WHERE id <> next_id AND EXISTS (SELECT 1 FROM event)
  ON CONFLICT (instance_id, channel, message_id) DO NOTHING),
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
-- Differs because a CTE cannot write: session variables carry what was found from part to part, in one packet. The
-- cursor usually exists and is updated: an upsert would also lock the gap before it, where new subscribers insert theirs.
SET @mode = NULL, @message = NULL, @next = NULL, @wait = NULL, @cursor = NULL, @activity = NULL, @key = NULL;
SELECT i.workflow_name, s.mode, s.activity_id INTO @workflow, @mode, @wait
  FROM workflow_instances i JOIN channel_subscriptions s ON s.instance_id = i.instance_id AND s.channel = :channel
 WHERE i.instance_id = :instance_id AND {may_wake}
   FOR UPDATE SKIP LOCKED;
SELECT {cursor} INTO @cursor
  FROM channel_subscriptions s WHERE s.instance_id = :instance_id AND s.channel = :channel AND @mode = 'broadcast';
SELECT {next_after} INTO @next FROM DUAL WHERE @mode = 'broadcast';
SELECT f.activity_id, f.message_id, f.match_key INTO @activity, @message, @key FROM (
  SELECT w.id, w.activity_id, w.match_key,
         CASE WHEN w.match_key IS NULL THEN @next ELSE {next_match(w)} END AS message_id
    FROM (SELECT 0 AS id, COALESCE(:activity_id, @wait) AS activity_id, :match_key AS match_key
           UNION ALL
          SELECT id, activity_id, match_key FROM perdure_waits
           WHERE instance_id = :instance_id AND channel = :channel AND :activity_id IS NULL) w
         JOIN channel_subscriptions s ON s.instance_id = :instance_id AND s.channel = :channel
   WHERE w.activity_id IS NOT NULL) f
 WHERE @mode = 'broadcast' AND f.message_id IS NOT NULL ORDER BY f.message_id, f.id LIMIT 1;
SELECT f.activity_id INTO @activity FROM (
  SELECT 0 AS id, COALESCE(:activity_id, @wait) AS activity_id
   UNION ALL
  SELECT id, activity_id FROM perdure_waits
   WHERE instance_id = :instance_id AND channel = :channel AND :activity_id IS NULL) f
 WHERE @mode = 'competing' AND f.activity_id IS NOT NULL ORDER BY f.id LIMIT 1;
SELECT m.id INTO @message FROM channel_messages m {index(idx_channel_messages_order)}
 WHERE @mode = 'competing' AND @activity IS NOT NULL AND m.channel = :channel
   AND (SELECT k.message_id FROM channel_message_claims k WHERE k.message_id = m.message_id) IS NULL
 ORDER BY m.channel, m.id LIMIT 1 FOR UPDATE SKIP LOCKED;
{insert_event}
SELECT :instance_id, @activity, 'ChannelMessageReceived', m.data_type,
       CONCAT('{"id": ', m.id, ', "channel": ', :name, ', "channel_name": ', :name,
              ', "data": ', COALESCE(m.data, 'null'), ', "metadata": ', COALESCE(m.metadata, '{}'),
              ', "published_at": "', {iso(m.published_at)}, '", "created_at": "', {iso(m.published_at)}, '"',
              CASE WHEN @key IS NULL THEN '' ELSE CONCAT(', "match": "', @key, '"') END, '}'),
       m.data_binary, {now}
  FROM channel_messages m
 WHERE m.id = @message AND NOT EXISTS (SELECT 1 FROM workflow_history h
                                        WHERE h.instance_id = :instance_id AND h.activity_id = @activity);
SET @fresh = ROW_COUNT();
UPDATE channel_subscriptions
   SET activity_id = NULL, timeout_at = NULL,
       cursor_message_id = CASE WHEN @fresh AND @message = @next THEN @message ELSE cursor_message_id END
 WHERE instance_id = :instance_id AND channel = :channel AND @message IS NOT NULL;
DELETE FROM perdure_waits WHERE instance_id = :instance_id AND activity_id = @activity AND @message IS NOT NULL;
UPDATE channel_delivery_cursors SET last_delivered_id = @message, updated_at = {now}
 WHERE channel = :channel AND instance_id = :instance_id AND @message = @next AND @fresh;
SET @moved = ROW_COUNT();
INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
SELECT :channel, :instance_id, @message, {now} FROM DUAL WHERE @message = @next AND @fresh AND @moved = 0
ON DUPLICATE KEY UPDATE last_delivered_id = @message, updated_at = {now};
INSERT IGNORE INTO perdure_taken_messages (instance_id, channel, message_id, match_key)
SELECT :instance_id, :channel, @message, @key FROM DUAL WHERE @message <> @next AND @fresh;
DELETE FROM channel_messages WHERE id = @message AND @mode = 'competing' AND @fresh;
UPDATE workflow_instances
   SET status = 'running', updated_at = {now}, current_activity_id = @activity,
       lock_token = lock_token + CASE WHEN :token IS NULL THEN 1 ELSE 0 END,
       locked_by = CASE WHEN :token IS NOT NULL THEN locked_by END,
       locked_at = CASE WHEN :token IS NOT NULL THEN locked_at END,
       lock_expires_at = CASE WHEN :token IS NOT NULL THEN lock_expires_at END
 WHERE instance_id = :instance_id AND @message IS NOT NULL;
SELECT @workflow, @activity, @message, @fresh FROM DUAL WHERE @message IS NOT NULL

-- deliver_set -> instance_id, workflow_name, activity_id, channel, message_id, recorded
-- Deliver to many waiting instances, each from one broadcast channel, in one statement, as `deliver` does to one. Then
-- unmark those of these channels that have nothing left to deliver, as `clean` and `requeue` do. Instances and channels
-- that were changed since the statement began are skipped, because the statement does not see their current state, and
-- so are channels whose waits match by values: a sweep makes the keys of their messages first. A CASE hides the mode, as
-- in `behind`. Only for databases with the feature `one_statement_writes`.
WITH asked AS (
  SELECT * FROM unnest(:ids::text[], :from_channels::text[], :names::text[]) AS asked (instance_id, channel, name)),
target AS (
  SELECT i.instance_id, i.workflow_name, s.id AS subscription_id, s.channel, a.name, {first_wait} AS activity_id,
         {next} AS message_id
    FROM asked a JOIN workflow_instances i ON i.instance_id = a.instance_id
         JOIN channel_subscriptions s ON s.instance_id = a.instance_id AND s.channel = a.channel
   WHERE CASE s.mode WHEN 'broadcast' THEN 1 END = 1
     AND CASE WHEN i.status IN ('waiting_for_event', 'waiting_for_timer', 'waiting_for_message')
               AND (i.locked_by IS NULL OR i.lock_expires_at <= {now}) THEN 1 END = 1
     AND i.xmin = (SELECT seen.xmin FROM workflow_instances seen WHERE seen.instance_id = a.instance_id)
     AND (SELECT w.id FROM perdure_waits w
           WHERE w.instance_id = a.instance_id AND w.channel = a.channel AND w.match_key IS NOT NULL LIMIT 1) IS NULL
  FOR UPDATE OF i, s SKIP LOCKED),
message AS (
  SELECT t.*, m.* FROM target t CROSS JOIN LATERAL (
    SELECT data_type, data, data_binary, metadata, published_at FROM channel_messages WHERE id = t.message_id LIMIT 1) m
   WHERE t.activity_id IS NOT NULL),
event AS (
  {insert_event}
  SELECT instance_id, activity_id, 'ChannelMessageReceived', data_type,
         concat('{"id": ', message_id, ', "channel": ', name, ', "channel_name": ', name,
                ', "data": ', COALESCE(data, 'null'), ', "metadata": ', COALESCE(metadata, '{}'),
                ', "published_at": "', {iso(published_at)}, '", "created_at": "', {iso(published_at)}, '"}'),
         data_binary, {now}
    FROM message
  ON CONFLICT (instance_id, activity_id) DO NOTHING RETURNING instance_id),
moved AS (
  UPDATE channel_subscriptions s
     SET activity_id = NULL, timeout_at = NULL,
         cursor_message_id = CASE WHEN m.instance_id IN (SELECT instance_id FROM event) THEN m.message_id
                                  ELSE s.cursor_message_id END
    FROM message m WHERE s.id = m.subscription_id),
cursors AS (
  INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
  SELECT channel, instance_id, message_id, {now} FROM message WHERE instance_id IN (SELECT instance_id FROM event)
  ON CONFLICT (channel, instance_id) DO UPDATE SET last_delivered_id = excluded.last_delivered_id, updated_at = {now}),
ended AS (
  DELETE FROM perdure_waits w USING message m WHERE w.instance_id = m.instance_id AND w.activity_id = m.activity_id),
woken AS (
  UPDATE workflow_instances i
     SET status = 'running', updated_at = {now}, current_activity_id = m.activity_id, lock_token = i.lock_token + 1,
         locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
    FROM message m WHERE i.instance_id = m.instance_id),
quiet AS (
  SELECT p.channel FROM perdure_channels p
   WHERE p.channel {any(:channels)} AND {is_plain(p)}
     AND p.xmin = (SELECT seen.xmin FROM perdure_channels seen WHERE seen.channel = p.channel)
  FOR UPDATE SKIP LOCKED),
unmarked AS (
  UPDATE perdure_channels p
     SET dirty_at = CASE WHEN
           (SELECT w.id FROM perdure_waits w
             WHERE w.channel = p.channel AND w.match_key IS NULL AND {waits(w)}
               AND w.instance_id NOT IN (SELECT instance_id FROM message)
               AND (SELECT {next} FROM channel_subscriptions s
                     WHERE s.instance_id = w.instance_id AND s.channel = w.channel) IS NOT NULL LIMIT 1) IS NOT NULL
        OR (SELECT s.id FROM channel_subscriptions s
             WHERE s.channel = p.channel AND s.mode = 'broadcast' AND s.activity_id IS NOT NULL AND {waits(s)}
               AND s.instance_id NOT IN (SELECT instance_id FROM message) AND {next} IS NOT NULL LIMIT 1) IS NOT NULL
         THEN {now} END
    FROM quiet WHERE p.channel = quiet.channel)
SELECT instance_id, workflow_name, activity_id, channel, message_id,
       CASE WHEN instance_id IN (SELECT instance_id FROM event) THEN 1 ELSE 0 END
  FROM message WHERE (SELECT {announcement} FROM message) IS NOT NULL

-- marked -> channel, is_unseen
-- Return the channels that may have something to deliver, the longest marked first, and whether there is a message of
-- another framework that no sweep has seen.
SELECT * FROM (
  SELECT channel, 0 AS is_unseen FROM perdure_channels
   WHERE dirty_at IS NOT NULL ORDER BY dirty_at, {ordinal(channel)} LIMIT :limit) dirty
UNION ALL
SELECT * FROM (
  SELECT channel, 1 AS is_unseen FROM channel_messages WHERE framework IS NULL ORDER BY id LIMIT 1) unseen

-- survey -> kind, channel, instance_id
-- Return whether there is a message of another framework that no sweep has seen, which of these channels are marked,
-- which are not plain, and the subscribers of `behind`. Only for databases with the feature `one_statement_writes`.
SELECT * FROM (SELECT 'unseen', NULL, NULL FROM channel_messages WHERE framework IS NULL ORDER BY id LIMIT 1) unseen
UNION ALL
SELECT 'marked', p.channel, NULL FROM perdure_channels p WHERE p.channel {any(:channels)} AND p.dirty_at IS NOT NULL
UNION ALL
SELECT 'special', p.channel, NULL FROM perdure_channels p WHERE p.channel {any(:channels)} AND NOT {is_plain(p)}
UNION ALL
SELECT 'behind', behind.channel, behind.instance_id FROM ({behind}) behind

-- behind -> channel, instance_id
-- Return free subscribers that wait while a message of their broadcast channel is pending.
{behind}

-- matching -> channel, instance_id
-- Return free subscribers that wait for one of these keys while a message with that key is pending.
SELECT w.channel, w.instance_id FROM perdure_waits w {index(idx_perdure_waits_match)}
 WHERE w.match_key {any(:keys)} AND {waits_free(w)}
   AND (SELECT {next_match(w)} FROM channel_subscriptions s
         WHERE s.instance_id = w.instance_id AND s.channel = w.channel) IS NOT NULL
 LIMIT :limit

-- backlog -> channel
-- Return which of these channels are competing and have an unclaimed message.
SELECT p.channel FROM perdure_channels p
 WHERE p.channel {any(:channels)}
   AND (SELECT s.mode FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
         WHERE s.channel = p.channel AND s.mode = 'competing' LIMIT 1) IS NOT NULL
   AND {unclaimed(p)} IS NOT NULL

-- idle -> channel, instance_id
-- Return free subscribers that wait on competing channels, where a wait takes any message.
SELECT w.channel, w.instance_id FROM perdure_waits w {index(idx_perdure_waits_channel)}
 WHERE w.channel {any(:channels)} AND w.match_key IS NULL AND {waits_free(w)}
   AND (SELECT s.mode FROM channel_subscriptions s
         WHERE s.instance_id = w.instance_id AND s.channel = w.channel) = 'competing'
UNION ALL
SELECT s.channel, s.instance_id FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
 WHERE s.channel {any(:channels)} AND s.mode = 'competing' AND s.activity_id IS NOT NULL AND {waits_free(s)}
 LIMIT :limit

-- seize -> channel
-- Lock those of these channels that no transaction is publishing to, and return them.
SELECT channel FROM perdure_channels WHERE channel {any(:channels)} ORDER BY channel {skip_locked}

-- unserved -> channel
-- Return which of these channels have a subscriber that waits, free or not, and a message for it.
SELECT p.channel FROM perdure_channels p
 WHERE p.channel {any(:channels)} AND (
       (SELECT w.id FROM perdure_waits w {index(idx_perdure_waits_channel)}
         WHERE w.channel = p.channel AND w.match_key IS NULL AND {waits(w)}
           AND (SELECT CASE s.mode WHEN 'broadcast' THEN {next} ELSE {unclaimed(s)} END FROM channel_subscriptions s
                 WHERE s.instance_id = w.instance_id AND s.channel = w.channel) IS NOT NULL LIMIT 1) IS NOT NULL
    OR (SELECT s.id FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
         WHERE s.channel = p.channel AND s.mode = 'broadcast' AND s.activity_id IS NOT NULL
           AND {waits(s)} AND {next} IS NOT NULL LIMIT 1) IS NOT NULL
    OR (SELECT s.id FROM channel_subscriptions s {index(idx_subscriptions_waiting)}
         WHERE s.channel = p.channel AND s.mode = 'competing' AND s.activity_id IS NOT NULL
           AND {waits(s)} LIMIT 1) IS NOT NULL
       AND {unclaimed(p)} IS NOT NULL)

-- unmatched -> id
-- Return whether a subscriber waits, free or not, for one of these keys, and there is a message with it.
SELECT w.id FROM perdure_waits w {index(idx_perdure_waits_match)}
 WHERE w.match_key {any(:keys)} AND {waits(w)}
   AND (SELECT {next_match(w)} FROM channel_subscriptions s
         WHERE s.instance_id = w.instance_id AND s.channel = w.channel) IS NOT NULL
 LIMIT 1

-- clean
-- Record that these channels have nothing to deliver.
UPDATE perdure_channels SET dirty_at = NULL WHERE channel {any(:channels)}

-- requeue
-- Record that these channels have something left, to be delivered after the others.
UPDATE perdure_channels SET dirty_at = {now} WHERE channel {any(:channels)}

-- unseen -> message_id, channel, id
-- Return messages of other frameworks that no sweep has seen.
SELECT message_id, channel, id FROM channel_messages WHERE framework IS NULL ORDER BY id LIMIT :limit

-- adopt
-- Record that a sweep has seen them.
UPDATE channel_messages SET framework = 'family' WHERE message_id {any(:ids)}
