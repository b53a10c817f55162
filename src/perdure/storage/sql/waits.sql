-- hold
-- How an instance stands, its row locked to the commit, and how many waits it has.
SELECT i.status, i.lock_token, i.locked_by,
       (SELECT count(*) FROM workflow_timer_subscriptions t WHERE t.instance_id = i.instance_id)
       + (SELECT count(*) FROM channel_subscriptions s
           WHERE s.instance_id = i.instance_id AND s.activity_id IS NOT NULL)
  FROM workflow_instances i WHERE i.instance_id = :instance_id {for_update}

-- is_due
-- Whether a timer is due; one that is there keeps its time.
SELECT CASE WHEN COALESCE((SELECT t.expires_at FROM workflow_timer_subscriptions t
                            WHERE t.instance_id = :instance_id AND t.timer_id = :timer_id),
                          :at, {after(:after_sec)}) <= {now} THEN 1 ELSE 0 END

-- is_ready
-- Whether a subscriber has a message to take or its time is up; the same wait keeps its time. Nothing for who is not
-- subscribed.
SELECT CASE WHEN COALESCE(CASE WHEN s.activity_id = :activity_id THEN s.timeout_at END, :at,
                          {after(:after_sec)}) <= {now}
              OR s.mode = 'broadcast' AND {newest(s)} > {cursor}
              OR s.mode = 'competing' AND {unclaimed(s)} IS NOT NULL
            THEN 1 ELSE 0 END
  FROM channel_subscriptions s WHERE s.instance_id = :instance_id AND s.channel = :channel

-- wait
-- A subscriber waits for the next message; the same wait keeps its time. (MySQL assigns from left to right.)
UPDATE channel_subscriptions
   SET timeout_at = COALESCE(CASE WHEN activity_id = :activity_id THEN timeout_at END, :at, {after(:after_sec)}),
       activity_id = :activity_id
 WHERE instance_id = :instance_id AND channel = :channel

-- drop_others
-- An instance waits for nothing but these.
DELETE FROM workflow_timer_subscriptions WHERE instance_id = :instance_id AND NOT timer_id {any(:timers)};
UPDATE channel_subscriptions SET activity_id = NULL, timeout_at = NULL
 WHERE instance_id = :instance_id AND activity_id IS NOT NULL AND NOT channel {any(:channels)}

-- deadlines
-- When an instance's timers are due (0) and its time-outs (1). Not their MIN, which PostgreSQL would look for among
-- everybody's.
SELECT 0, expires_at FROM workflow_timer_subscriptions WHERE instance_id = :instance_id
UNION ALL
SELECT 1, timeout_at FROM channel_subscriptions WHERE instance_id = :instance_id AND activity_id IS NOT NULL

-- park
-- Wait, and release the lease.
UPDATE workflow_instances
   SET status = :status, updated_at = {now}, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
 WHERE instance_id = :instance_id

-- sleep
-- Wait for one timer, all of it or nothing: nothing if the lease is not current, the timer is due, or somebody changed
-- the instance since the statement began: it does not see what timers he left. Only PostgreSQL has it, to save round
-- trips: the others take the steps above.
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
   WHERE t.instance_id = parked.instance_id AND t.timer_id <> :timer_id AND :alone = 1),
waits AS (
  UPDATE channel_subscriptions s SET activity_id = NULL, timeout_at = NULL FROM parked
   WHERE s.instance_id = parked.instance_id AND s.activity_id IS NOT NULL AND :alone = 1)
SELECT count(*) FROM parked

-- listen
-- Wait for one channel, all of it or nothing: nothing if the lease is not current, a message is pending or the time is
-- up. The look is a statement after the lock, for it sees what was there when it began. Only PostgreSQL has it.
INSERT INTO perdure_channels (channel) VALUES (:channel) ON CONFLICT (channel) DO UPDATE SET channel = :channel;
WITH parked AS (
  UPDATE workflow_instances i
     SET status = 'waiting_for_message', updated_at = {now}, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
    FROM channel_subscriptions s
   WHERE i.instance_id = :instance_id AND i.locked_by = :worker_id AND (i.lock_token = :token OR :token IS NULL)
     AND i.status IN ('running', 'waiting_for_event', 'waiting_for_timer', 'waiting_for_message')
     AND s.instance_id = i.instance_id AND s.channel = :channel
     AND COALESCE(CASE WHEN s.activity_id = :activity_id THEN s.timeout_at END, :at, {after(:after_sec)},
                  'infinity') > {now}
     AND CASE s.mode WHEN 'broadcast' THEN COALESCE({newest(s)}, 0) <= {cursor} ELSE {unclaimed(s)} IS NULL END
     AND i.xmin = (SELECT seen.xmin FROM workflow_instances seen WHERE seen.instance_id = :instance_id)
  RETURNING i.instance_id),
wait AS (
  UPDATE channel_subscriptions s
     SET timeout_at = CASE WHEN s.channel = :channel THEN COALESCE(
           CASE WHEN s.activity_id = :activity_id THEN s.timeout_at END, :at, {after(:after_sec)}) END,
         activity_id = CASE WHEN s.channel = :channel THEN :activity_id END
    FROM parked
   WHERE s.instance_id = parked.instance_id
     AND (s.channel = :channel OR s.activity_id IS NOT NULL AND :alone = 1)),
timers AS (
  DELETE FROM workflow_timer_subscriptions t USING parked WHERE t.instance_id = parked.instance_id AND :alone = 1)
SELECT count(*) FROM parked

-- wake
-- Record why an instance wakes, and set it running. A lease that the caller has stays; else the token grows.
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

-- next_due
-- The first timer and the first time-out of own waiting instances, the first lease to run out, and what can be done at
-- once: the first instance that can be taken, the first channel that is marked.
SELECT (SELECT t.expires_at FROM workflow_timer_subscriptions t {index(idx_timers_due)}
         WHERE t.framework = 'perdure' AND {waits(t)} ORDER BY t.expires_at LIMIT 1),
       (SELECT s.timeout_at FROM channel_subscriptions s {index(idx_subscriptions_due)}
         WHERE s.framework = 'perdure' AND s.timeout_at IS NOT NULL AND s.activity_id IS NOT NULL
           AND {waits(s)} ORDER BY s.timeout_at LIMIT 1),
       (SELECT claimable_at FROM workflow_instances {index(idx_instances_claimable)}
         WHERE framework = 'perdure' AND claimable_at > {now} ORDER BY claimable_at LIMIT 1),
       (SELECT claimable_at FROM workflow_instances {index(idx_instances_claimable)}
         WHERE framework = 'perdure' AND claimable_at <= {now} ORDER BY claimable_at LIMIT 1),
       (SELECT dirty_at FROM perdure_channels WHERE dirty_at IS NOT NULL ORDER BY dirty_at LIMIT 1)
