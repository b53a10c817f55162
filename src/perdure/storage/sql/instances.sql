-- create -> lock_expires_at
-- Insert an instance and, if necessary, its definition; nothing if the id is taken. With a worker the row is leased
-- from the start, so that no other worker takes it first.
INSERT INTO workflow_definitions (workflow_name, source_hash, source_code, created_at)
SELECT :workflow_name, :source_hash, :source_code, {now} {dual}
 WHERE NOT EXISTS (SELECT 1 FROM workflow_definitions
                    WHERE workflow_name = :workflow_name AND source_hash = :source_hash)
{on_conflict_do_nothing(workflow_name, source_hash)};
-- [required]
INSERT INTO workflow_instances
       (instance_id, workflow_name, source_hash, owner_service, framework, status, current_activity_id, continued_from,
        started_at, updated_at, input_data, output_data, locked_by, locked_at, lock_timeout_seconds, lock_expires_at,
        lock_token)
VALUES (:instance_id, :workflow_name, :source_hash, :owner_service, 'perdure', :status, :current_activity_id,
        :continued_from, COALESCE(:started_at, {now}), COALESCE(:updated_at, {now}), :input_data, :output_data,
        :locked_by, CASE WHEN :lease_sec IS NULL THEN :locked_at ELSE {now} END, :lock_timeout_seconds,
        CASE WHEN :lease_sec IS NULL THEN :lock_expires_at ELSE {after(:lease_sec)} END, :lock_token)
{on_conflict_do_nothing(instance_id)};
SELECT lock_expires_at FROM workflow_instances WHERE instance_id = :instance_id

-- create [postgresql]
-- Differs because a CTE makes it one round trip.
WITH definition AS (
  INSERT INTO workflow_definitions (workflow_name, source_hash, source_code, created_at)
  SELECT :workflow_name::text, :source_hash::text, :source_code::text, {now}
   WHERE NOT EXISTS (SELECT 1 FROM workflow_definitions
                      WHERE workflow_name = :workflow_name AND source_hash = :source_hash)
  ON CONFLICT (workflow_name, source_hash) DO NOTHING)
INSERT INTO workflow_instances
       (instance_id, workflow_name, source_hash, owner_service, framework, status, current_activity_id, continued_from,
        started_at, updated_at, input_data, output_data, locked_by, locked_at, lock_timeout_seconds, lock_expires_at,
        lock_token)
VALUES (:instance_id, :workflow_name, :source_hash, :owner_service, 'perdure', :status, :current_activity_id,
        :continued_from, COALESCE(:started_at::timestamp, {now}), COALESCE(:updated_at::timestamp, {now}),
        :input_data, :output_data, :locked_by,
        CASE WHEN :lease_sec::float8 IS NULL THEN :locked_at::timestamp ELSE {now} END, :lock_timeout_seconds,
        CASE WHEN :lease_sec IS NULL THEN :lock_expires_at::timestamp ELSE {after(:lease_sec)} END, :lock_token)
ON CONFLICT (instance_id) DO NOTHING
RETURNING lock_expires_at

-- get -> {instance}
-- Return every field of one instance.
SELECT {instance} FROM workflow_instances WHERE instance_id = :instance_id

-- get_many -> {instance}
-- Return every field of many instances.
SELECT {instance} FROM workflow_instances WHERE instance_id {any(:ids)}

-- move -> count
-- Change between states that are not final.
UPDATE workflow_instances SET status = :status, updated_at = {now}
 WHERE instance_id = :instance_id AND status {any(:sources)}
   AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL)

-- set_activity -> count
-- Record the step that the instance has reached.
UPDATE workflow_instances SET current_activity_id = :activity_id, updated_at = {now}
 WHERE instance_id = :instance_id AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL)

-- finish -> count
-- Change to a final state, end the lease (the token grows), and remove timers and waits. Only a running instance
-- completes.
-- [answer]
UPDATE workflow_instances
   SET status = :status, output_data = COALESCE(:output_data, output_data), updated_at = {now},
       lock_token = lock_token + 1, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
 WHERE instance_id = :instance_id AND finished_at IS NULL AND (status = 'running' OR :status <> 'completed')
   AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL);
DELETE FROM workflow_timer_subscriptions WHERE instance_id = :instance_id
   AND EXISTS (SELECT 1 FROM workflow_instances i WHERE i.instance_id = :instance_id AND i.finished_at IS NOT NULL);
DELETE FROM perdure_waits WHERE instance_id = :instance_id
   AND EXISTS (SELECT 1 FROM workflow_instances i WHERE i.instance_id = :instance_id AND i.finished_at IS NOT NULL)

-- finish [postgresql]
-- Differs because a CTE makes it one round trip. It sees the timers and waits that existed when it began: if the
-- instance was changed since then, there may be others, and nothing is done.
WITH seen AS (
  SELECT instance_id, xmin AS version FROM workflow_instances
   WHERE instance_id = :instance_id AND finished_at IS NULL AND (status = 'running' OR :status <> 'completed')
     AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL)),
done AS (
  UPDATE workflow_instances i
     SET status = :status, output_data = COALESCE(:output_data, i.output_data), updated_at = {now},
         lock_token = i.lock_token + 1, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
    FROM seen WHERE i.instance_id = seen.instance_id AND i.xmin = seen.version RETURNING i.instance_id),
timers AS (DELETE FROM workflow_timer_subscriptions t USING done WHERE t.instance_id = done.instance_id),
waits AS (DELETE FROM perdure_waits w USING done WHERE w.instance_id = done.instance_id)
SELECT instance_id FROM done

-- interrupt -> count
-- Cancel with compensation: fence off the worker and let the instance compensate.
UPDATE workflow_instances
   SET status = 'compensating', updated_at = {now},
       lock_token = lock_token + 1, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
 WHERE instance_id = :instance_id AND finished_at IS NULL AND status <> 'compensating'

-- clear_waits
-- Remove all timers and waits, and keep the subscriptions.
DELETE FROM workflow_timer_subscriptions WHERE instance_id = :instance_id;
DELETE FROM perdure_waits WHERE instance_id = :instance_id

-- resumable -> instance_id, workflow_name, claimable_at, locked_by, locked_at
-- Return own instances that a worker may take now, the longest waiting first.
SELECT instance_id, workflow_name, claimable_at, locked_by, locked_at
  FROM workflow_instances {index(idx_instances_claimable)}
 WHERE framework = 'perdure' AND claimable_at <= {now}
 ORDER BY claimable_at, {ordinal(instance_id)} LIMIT :limit

-- resumable_named -> instance_id, workflow_name, claimable_at, locked_by, locked_at
-- Return the same for one workflow name; for several, one branch each, so that unknown names are never read.
SELECT * FROM (
  SELECT instance_id, workflow_name, claimable_at, locked_by, locked_at
    FROM workflow_instances {index(idx_instances_claimable_name)}
   WHERE framework = 'perdure' AND workflow_name = :workflow_name AND claimable_at <= {now}
   ORDER BY claimable_at, {ordinal(instance_id)} LIMIT :limit) branch
