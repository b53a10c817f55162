-- hold -> status, lock_token, locked_by, waits
-- Return the state of an instance, its row locked until the commit, and the number of its waits.
SELECT i.status, i.lock_token, i.locked_by,
       (SELECT count(*) FROM workflow_timer_subscriptions t WHERE t.instance_id = i.instance_id)
       + (SELECT count(*) FROM perdure_waits w WHERE w.instance_id = i.instance_id)
  FROM workflow_instances i WHERE i.instance_id = :instance_id {for_update}

-- hold_many -> instance_id, status, lock_token, locked_by, waits, framework, now
-- Return the same for many instances, locked in one order, and the time.
SELECT i.instance_id, i.status, i.lock_token, i.locked_by,
       (SELECT count(*) FROM workflow_timer_subscriptions t WHERE t.instance_id = i.instance_id)
       + (SELECT count(*) FROM perdure_waits w WHERE w.instance_id = i.instance_id), i.framework, {now}
  FROM workflow_instances i WHERE i.instance_id {any(:ids)} ORDER BY i.instance_id {for_update}

-- registered -> id, channel, match_key
-- Return the timers and waits of an instance. A timer has no channel.
SELECT timer_id, NULL, NULL FROM workflow_timer_subscriptions WHERE instance_id = :instance_id
UNION ALL
SELECT activity_id, channel, match_key FROM perdure_waits WHERE instance_id = :instance_id

-- waits_of -> instance_id, activity_id, channel, until
-- Return the timers and waits of many instances, with their times.
SELECT instance_id, COALESCE(activity_id, timer_id), NULL, {utc(expires_at)} FROM workflow_timer_subscriptions
 WHERE instance_id {any(:ids)}
UNION ALL
SELECT instance_id, activity_id, channel, {utc(timeout_at)} FROM perdure_waits WHERE instance_id {any(:ids)}

-- channel_waits -> id, channel, activity_id, timeout_at
-- Return the waits of an instance; their ids are the order of registration.
SELECT id, channel, activity_id, timeout_at FROM perdure_waits WHERE instance_id = :instance_id

-- pending -> channel
-- Return on which of these channels a subscriber has a message, whatever its data.
SELECT s.channel FROM channel_subscriptions s
 WHERE s.instance_id = :instance_id AND s.channel {any(:channels)}
   AND CASE s.mode WHEN 'competing' THEN {unclaimed(s)} ELSE {next} END IS NOT NULL

-- ready -> id, channel
-- Return which of an instance's timers are due, and which of its waits have timed out or have a message. A timer has no
-- channel.
SELECT t.timer_id, NULL FROM workflow_timer_subscriptions t
 WHERE t.instance_id = :instance_id AND t.expires_at <= {now}
UNION ALL
SELECT w.activity_id, w.channel FROM perdure_waits w
 WHERE w.instance_id = :instance_id
   AND (w.timeout_at <= {now}
        OR (SELECT CASE WHEN s.mode = 'competing' THEN {unclaimed(s)} WHEN w.match_key IS NULL THEN {next}
                        ELSE {next_match(w)} END
              FROM channel_subscriptions s WHERE s.instance_id = w.instance_id AND s.channel = w.channel) IS NOT NULL)

-- is_due -> due
-- Return whether a timer is due; an existing one keeps its time (PostgreSQL looks at it after `sleep`).
SELECT CASE WHEN COALESCE((SELECT t.expires_at FROM workflow_timer_subscriptions t
                            WHERE t.instance_id = :instance_id AND t.timer_id = :timer_id),
                          :at, {after(:after_sec)}) <= {now} THEN 1 ELSE 0 END

-- is_ready -> ready, mode, cursor_id, indexed_to
-- Return whether a wait has timed out or has a message (1), or a message that it may match (2); the same wait for any
-- message keeps its time. Also return how the channel is used, the subscriber's cursor, and whether the wait's set of
-- paths is in use. Nothing for an instance that is not subscribed.
SELECT CASE WHEN {is_over} = 1 THEN 1
            WHEN s.mode = 'competing' THEN CASE WHEN {unclaimed(s)} IS NOT NULL THEN 1 ELSE 0 END
            WHEN {next} IS NULL THEN 0
            ELSE :pending END, s.mode, {cursor},
       (SELECT p.to_id FROM perdure_match_paths p WHERE p.channel = :channel AND p.paths_key = :paths_key)
  FROM channel_subscriptions s WHERE s.instance_id = :instance_id AND s.channel = :channel

-- is_ready [mysql]
-- Differs because MySQL has to know the subscriber's cursor before it searches for later messages.
SET @mode = NULL, @cursor = NULL;
SELECT s.mode, {cursor} INTO @mode, @cursor
  FROM channel_subscriptions s WHERE s.instance_id = :instance_id AND s.channel = :channel;
SELECT CASE WHEN {is_over} = 1 THEN 1
            WHEN @mode = 'competing' THEN CASE WHEN {unclaimed(s)} IS NOT NULL THEN 1 ELSE 0 END
            WHEN {next_after} IS NULL THEN 0
            ELSE :pending END, @mode, @cursor,
       (SELECT p.to_id FROM perdure_match_paths p WHERE p.channel = :channel AND p.paths_key = :paths_key)
  FROM (SELECT :channel AS channel) s WHERE @mode IS NOT NULL

-- wait
-- Insert a wait of a subscriber for a message; an existing one keeps its position and its time.
INSERT INTO perdure_waits (instance_id, activity_id, channel, match_key, timeout_at)
SELECT instance_id, :activity_id, channel, :match_key, COALESCE(:at, {after(:after_sec)})
  FROM channel_subscriptions WHERE instance_id = :instance_id AND channel = :channel
{on_conflict_do_nothing(instance_id, activity_id)}

-- wait_many
-- Insert the first waits of many subscribers. Only for databases with the feature `round_trips`.
INSERT INTO perdure_waits (instance_id, activity_id, channel, match_key, timeout_at)
SELECT * FROM unnest(:ids::text[], :activities::text[], :channels::text[], :keys::text[], :times::timestamp[])

-- wait_many [mysql]
-- Differs because a list is written out.
INSERT INTO perdure_waits (instance_id, activity_id, channel, match_key, timeout_at) VALUES :rows

-- remind
-- Return the channels of an instance's waits, which count again: messages that arrived meanwhile are checked again.
UPDATE perdure_channels
   SET dirty_at = COALESCE(dirty_at, {now}),
       swept_id = COALESCE((SELECT CASE WHEN {cursor} < perdure_channels.swept_id THEN {cursor} END
                              FROM channel_subscriptions s
                             WHERE s.instance_id = :instance_id AND s.channel = perdure_channels.channel), swept_id)
 WHERE channel {any(:channels)}

-- drop
-- Remove waits of an instance.
DELETE {from_index(workflow_timer_subscriptions, unique_instance_timer, created_at)}
 WHERE instance_id = :instance_id AND timer_id {any(:timers)};
DELETE {from_index(perdure_waits, idx_perdure_waits_subscription, activity_id)}
 WHERE instance_id = :instance_id AND activity_id {any(:activities)}

-- end
-- End a wait; an instance of another framework has it in a column.
DELETE FROM perdure_waits WHERE instance_id = :instance_id AND activity_id = :activity_id;
UPDATE channel_subscriptions SET activity_id = NULL, timeout_at = NULL
 WHERE instance_id = :instance_id AND channel = :channel AND activity_id IS NOT NULL

-- deadlines -> kind, due_at
-- Return when an instance's timers (0) and its timeouts (1) are due. Not their MIN, which PostgreSQL would search for
-- among those of all instances.
SELECT 0, expires_at FROM workflow_timer_subscriptions WHERE instance_id = :instance_id
UNION ALL
SELECT 1, timeout_at FROM perdure_waits WHERE instance_id = :instance_id

-- park
-- Set an instance waiting, and release the lease.
UPDATE workflow_instances
   SET status = :status, updated_at = {now}, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
 WHERE instance_id = :instance_id

-- park_many
-- Do the same for many instances.
UPDATE workflow_instances
   SET status = :status, updated_at = {now}, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
 WHERE instance_id {any(:ids)}

-- sleep -> count
-- Wait for one timer and nothing else, all or nothing: nothing if the lease is not current, the timer is due, or the
-- instance was changed since the statement began, which does not see its current timers. Only PostgreSQL has it, to
-- save round trips: the others use the statements above.
WITH parked AS (
  UPDATE workflow_instances i
     SET status = 'waiting_for_timer', updated_at = {now}, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
   WHERE i.instance_id = :instance_id AND i.locked_by = :worker_id AND (i.lock_token = :token OR :token IS NULL)
     AND i.status IN ('running', 'waiting_for_event', 'waiting_for_timer', 'waiting_for_message')
     AND COALESCE((SELECT t.expires_at FROM workflow_timer_subscriptions t
                    WHERE t.instance_id = :instance_id AND t.timer_id = :timer_id),
                  :at, {after(:after_sec)}) > {now}
     AND i.xmin = (SELECT seen.xmin FROM workflow_instances seen WHERE seen.instance_id = :instance_id)
  RETURNING i.instance_id, i.framework),
timer AS (
  INSERT INTO workflow_timer_subscriptions (instance_id, timer_id, expires_at, activity_id, created_at, framework)
  SELECT instance_id, :timer_id, COALESCE(:at, {after(:after_sec)}), :activity_id, {now}, framework FROM parked
  ON CONFLICT (instance_id, timer_id) DO NOTHING),
timers AS (
  DELETE FROM workflow_timer_subscriptions t USING parked
   WHERE t.instance_id = parked.instance_id AND t.timer_id <> :timer_id),
waits AS (
  DELETE FROM perdure_waits w USING parked WHERE w.instance_id = parked.instance_id)
SELECT instance_id FROM parked

-- listen -> count
-- Wait for any message of one channel, all or nothing: nothing if the lease is not current, a message is pending or the
-- time is up. The check is a statement after the lock, because it sees what existed when it began. The same wait keeps
-- its position and its time; a wait of the same activity for something else is replaced. Only PostgreSQL has it.
INSERT INTO perdure_channels (channel) SELECT :channel WHERE {queued}
ON CONFLICT (channel) DO UPDATE SET channel = :channel;
WITH parked AS (
  UPDATE workflow_instances i
     SET status = 'waiting_for_message', updated_at = {now}, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
    FROM channel_subscriptions s
   WHERE i.instance_id = :instance_id AND i.locked_by = :worker_id AND (i.lock_token = :token OR :token IS NULL)
     AND i.status IN ('running', 'waiting_for_event', 'waiting_for_timer', 'waiting_for_message')
     AND s.instance_id = i.instance_id AND s.channel = :channel
     AND {is_over} = 0
     AND CASE s.mode WHEN 'broadcast' THEN {next} IS NULL ELSE {unclaimed(s)} IS NULL END
     AND i.xmin = (SELECT seen.xmin FROM workflow_instances seen WHERE seen.instance_id = :instance_id)
  RETURNING i.instance_id),
wait AS (
  INSERT INTO perdure_waits (instance_id, activity_id, channel, timeout_at)
  SELECT instance_id, :activity_id, :channel, COALESCE(:at, {after(:after_sec)}) FROM parked
  ON CONFLICT (instance_id, activity_id) DO UPDATE
     SET id = excluded.id, channel = excluded.channel, match_key = NULL, timeout_at = excluded.timeout_at
   WHERE perdure_waits.channel <> excluded.channel OR perdure_waits.match_key IS NOT NULL),
others AS (
  DELETE FROM perdure_waits w USING parked
   WHERE w.instance_id = parked.instance_id AND w.activity_id <> :activity_id),
timers AS (
  DELETE FROM workflow_timer_subscriptions t USING parked WHERE t.instance_id = parked.instance_id)
SELECT instance_id FROM parked

-- wake -> count
-- Record why an instance wakes, and set it running. A lease of the caller is kept; otherwise the token grows.
-- [answer]
{insert_event}
VALUES (:instance_id, :activity_id, :event_type, :data_type, :event_data, :event_data_binary, {now})
{on_conflict_do_nothing(instance_id, activity_id)};
UPDATE workflow_instances
   SET status = 'running', updated_at = {now}, current_activity_id = :activity_id,
       lock_token = lock_token + CASE WHEN :leased = 1 THEN 0 ELSE 1 END,
       locked_by = CASE WHEN :leased = 1 THEN locked_by END,
       locked_at = CASE WHEN :leased = 1 THEN locked_at END,
       lock_expires_at = CASE WHEN :leased = 1 THEN lock_expires_at END
 WHERE instance_id = :instance_id

-- next_due -> timer_at, timeout_at, lease_at, claimable_at, dirty_at, unseen_at
-- Return the first timer and the first timeout of own waiting instances, the first lease to expire, and what can be
-- done at once: the first instance that can be taken, the first channel that is marked, and an hour ago if there is a
-- message of another framework, which does not mark its channel. Workers compare this with an estimate of the clock that
-- is behind it: the present time would never be due.
SELECT (SELECT t.expires_at FROM workflow_timer_subscriptions t {index(idx_timers_due)}
         WHERE t.framework = 'perdure' AND {waits(t)} ORDER BY t.expires_at LIMIT 1),
       (SELECT w.timeout_at FROM perdure_waits w {index(idx_perdure_waits_due)}
         WHERE w.timeout_at IS NOT NULL AND {waits(w)} ORDER BY w.timeout_at LIMIT 1),
       (SELECT claimable_at FROM workflow_instances {index(idx_instances_claimable)}
         WHERE framework = 'perdure' AND claimable_at > {now} ORDER BY claimable_at LIMIT 1),
       (SELECT claimable_at FROM workflow_instances {index(idx_instances_claimable)}
         WHERE framework = 'perdure' AND claimable_at <= {now} ORDER BY claimable_at LIMIT 1),
       (SELECT dirty_at FROM perdure_channels WHERE dirty_at IS NOT NULL ORDER BY dirty_at LIMIT 1),
       (SELECT {ago(3600)} FROM channel_messages WHERE framework IS NULL ORDER BY id LIMIT 1)
