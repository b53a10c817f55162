-- register
-- Insert a timer; an existing one keeps its time.
INSERT INTO workflow_timer_subscriptions (instance_id, timer_id, expires_at, activity_id, created_at, framework)
SELECT i.instance_id, :timer_id, COALESCE(:at, {after(:after_sec)}), :activity_id, {now}, i.framework
  FROM workflow_instances i WHERE i.instance_id = :instance_id {on_conflict_do_nothing(instance_id, timer_id)}

-- register_many
-- Insert the first timers of many instances. Only for databases with the feature `round_trips`.
INSERT INTO workflow_timer_subscriptions (instance_id, timer_id, expires_at, activity_id, created_at, framework)
SELECT t.instance_id, t.timer_id, t.expires_at, t.activity_id, {now}, t.framework
  FROM unnest(:ids::text[], :timers::text[], :times::timestamp[], :activities::text[], :frameworks::text[])
       AS t (instance_id, timer_id, expires_at, activity_id, framework)

-- register_many [mysql]
-- Differs because a list is written out.
INSERT INTO workflow_timer_subscriptions (instance_id, timer_id, expires_at, activity_id, created_at, framework)
VALUES :rows

-- expired -> instance_id, timer_id, expires_at, activity_id, id, created_at
-- Return own timers of waiting instances that are due, the oldest first.
SELECT t.instance_id, t.timer_id, t.expires_at, t.activity_id, t.id, t.created_at
  FROM workflow_timer_subscriptions t {index(idx_timers_due)}
 WHERE t.framework = 'perdure' AND t.expires_at <= {now}
   AND {waits(t)}
 ORDER BY t.expires_at, t.id LIMIT :limit

-- remove
-- Remove a timer.
DELETE FROM workflow_timer_subscriptions WHERE instance_id = :instance_id AND timer_id = :timer_id

-- due -> workflow_name, activity_id, expires_at
-- Return a timer to fire, locked with its instance: it is due, and the instance is waiting and free, or leased to the
-- caller.
SELECT i.workflow_name, COALESCE(t.activity_id, t.timer_id), t.expires_at
  FROM workflow_timer_subscriptions t JOIN workflow_instances i ON i.instance_id = t.instance_id
 WHERE t.instance_id = :instance_id AND t.timer_id = :timer_id AND t.framework = 'perdure' AND t.expires_at <= {now}
   AND {may_wake}
{skip_locked}

-- fire -> workflow_name, activity_id
-- Fire a timer of a waiting instance that is free. Only PostgreSQL has it, to save round trips.
WITH due AS (
  SELECT i.instance_id, i.workflow_name, t.id, t.expires_at, COALESCE(t.activity_id, t.timer_id) AS activity_id
    FROM workflow_timer_subscriptions t JOIN workflow_instances i ON i.instance_id = t.instance_id
   WHERE t.instance_id = :instance_id AND t.timer_id = :timer_id AND t.framework = 'perdure' AND t.expires_at <= {now}
     AND i.status IN ('waiting_for_event', 'waiting_for_timer', 'waiting_for_message')
     AND (i.locked_by IS NULL OR i.lock_expires_at <= {now})
  FOR UPDATE SKIP LOCKED),
event AS (
  INSERT INTO workflow_history (instance_id, activity_id, event_type, data_type, event_data, created_at)
  SELECT instance_id, activity_id, 'TimerExpired', 'json',
         concat('{"result": null, "timer_id": ', :name::text, ', "expires_at": "', {iso(expires_at)},
                '", "completed": true}'), {now} FROM due
  ON CONFLICT (instance_id, activity_id) DO NOTHING),
gone AS (DELETE FROM workflow_timer_subscriptions t USING due WHERE t.id = due.id),
woken AS (
  UPDATE workflow_instances i
     SET status = 'running', updated_at = {now}, current_activity_id = due.activity_id, lock_token = i.lock_token + 1,
         locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
    FROM due WHERE i.instance_id = due.instance_id)
SELECT workflow_name, activity_id FROM due

-- fire_set -> instance_id, timer_id, workflow_name
-- Fire timers of many waiting instances, one of each, and notify, in one statement, as `fire` fires one. The CASE hides
-- the conditions from the planner, which could read all due timers by their index. Only for databases with the feature
-- `one_statement_writes`.
WITH asked AS (
  SELECT * FROM unnest(:ids::text[], :timers::text[], :names::text[]) AS asked (instance_id, timer_id, name)),
due AS (
  SELECT i.instance_id, i.workflow_name, t.id, t.timer_id, t.expires_at, COALESCE(t.activity_id, t.timer_id) AS activity_id,
         a.name
    FROM asked a JOIN workflow_timer_subscriptions t ON t.instance_id = a.instance_id AND t.timer_id = a.timer_id
         JOIN workflow_instances i ON i.instance_id = a.instance_id
   WHERE CASE WHEN t.framework = 'perdure' AND t.expires_at <= {now}
               AND i.status IN ('waiting_for_event', 'waiting_for_timer', 'waiting_for_message')
               AND (i.locked_by IS NULL OR i.lock_expires_at <= {now}) THEN 1 END = 1
  FOR UPDATE OF i, t SKIP LOCKED),
first AS (
  SELECT DISTINCT ON (instance_id) * FROM due ORDER BY instance_id, {ordinal(timer_id)}),
event AS (
  INSERT INTO workflow_history (instance_id, activity_id, event_type, data_type, event_data, created_at)
  SELECT instance_id, activity_id, 'TimerExpired', 'json',
         concat('{"result": null, "timer_id": ', name, ', "expires_at": "', {iso(expires_at)},
                '", "completed": true}'), {now} FROM first
  ON CONFLICT (instance_id, activity_id) DO NOTHING),
gone AS (DELETE FROM workflow_timer_subscriptions t USING first WHERE t.id = first.id),
woken AS (
  UPDATE workflow_instances i
     SET status = 'running', updated_at = {now}, current_activity_id = first.activity_id, lock_token = i.lock_token + 1,
         locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
    FROM first WHERE i.instance_id = first.instance_id)
SELECT instance_id, timer_id, workflow_name FROM first WHERE (SELECT {announcement} FROM first) IS NOT NULL
