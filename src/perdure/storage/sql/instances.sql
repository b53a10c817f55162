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
        lock_token, headers)
VALUES (:instance_id, :workflow_name, :source_hash, :owner_service, 'perdure', :status, :current_activity_id,
        :continued_from, COALESCE(:started_at, {now}), COALESCE(:updated_at, {now}), :input_data, :output_data,
        :locked_by, CASE WHEN :lease_sec IS NULL THEN :locked_at ELSE {now} END, :lock_timeout_seconds,
        CASE WHEN :lease_sec IS NULL THEN :lock_expires_at ELSE {after(:lease_sec)} END, :lock_token,
        :headers)
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
        lock_token, headers)
VALUES (:instance_id, :workflow_name, :source_hash, :owner_service, 'perdure', :status, :current_activity_id,
        :continued_from, COALESCE(:started_at::timestamp, {now}), COALESCE(:updated_at::timestamp, {now}),
        :input_data, :output_data, :locked_by,
        CASE WHEN :lease_sec::float8 IS NULL THEN :locked_at::timestamp ELSE {now} END, :lock_timeout_seconds,
        CASE WHEN :lease_sec IS NULL THEN :lock_expires_at::timestamp ELSE {after(:lease_sec)} END, :lock_token,
        :headers)
ON CONFLICT (instance_id) DO NOTHING
RETURNING lock_expires_at

-- create_set -> instance_id, lock_expires_at
-- Insert many instances and their definitions in one statement, as `create` inserts one. Return those that were
-- inserted: the ids of the others are taken. Only for databases with the feature `one_statement_writes`.
WITH item AS (
  SELECT * FROM unnest(:instance_ids::text[], :workflow_names::text[], :source_hashes::text[], :owner_services::text[],
                       :statuses::text[], :headers::text[], :inputs::text[])
         AS item (instance_id, workflow_name, source_hash, owner_service, status, headers, input_data)),
definition AS (
  INSERT INTO workflow_definitions (workflow_name, source_hash, source_code, created_at)
  SELECT named.workflow_name, named.source_hash, '', {now}
    FROM (SELECT DISTINCT workflow_name, source_hash FROM item) named
   WHERE NOT EXISTS (SELECT 1 FROM workflow_definitions d
                      WHERE d.workflow_name = named.workflow_name AND d.source_hash = named.source_hash)
  ON CONFLICT (workflow_name, source_hash) DO NOTHING),
created AS (
  INSERT INTO workflow_instances
         (instance_id, workflow_name, source_hash, owner_service, framework, status, started_at, updated_at, input_data,
          locked_by, locked_at, lock_timeout_seconds, lock_expires_at, lock_token, headers)
  SELECT instance_id, workflow_name, source_hash, owner_service, 'perdure', status, {now}, {now}, input_data,
         :locked_by::text, CASE WHEN :lease_sec::float8 IS NOT NULL THEN {now} END, :lock_timeout_seconds::integer,
         {after(:lease_sec)}, :lock_token::bigint, headers
    FROM item
  ON CONFLICT (instance_id) DO NOTHING
  RETURNING instance_id, workflow_name, lock_expires_at)
SELECT instance_id, lock_expires_at FROM created WHERE (SELECT {announcement} FROM created) IS NOT NULL

-- lease_times -> locked_at, lock_expires_at
-- Return the time, and when a lease from now on expires, for `create_many`.
SELECT {now}, {after(:lease_sec)}

-- create_many -> count
-- Insert instances, all with the same lease; nothing for an id that is taken. One statement for all items, in JSON: it is
-- faster than one for each item. Only for databases with the feature `repeated_calls`.
INSERT INTO workflow_instances
       (instance_id, workflow_name, source_hash, owner_service, framework, status, started_at, updated_at, input_data,
        locked_by, locked_at, lock_timeout_seconds, lock_expires_at, lock_token, headers)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), 'perdure', json_extract(value, '$[4]'), :now, :now, json_extract(value, '$[6]'),
       :locked_by, :locked_at, :lock_timeout_seconds, :lock_expires_at, :lock_token, json_extract(value, '$[5]')
  FROM json_each(:items)
 WHERE true {on_conflict_do_nothing(instance_id)}

-- create_rows -> lock_expires_at
-- Insert instances and their definitions as rows of one insert each, and return when the leases expire. One id that is
-- taken fails the whole insert, and nothing is returned. Only for databases where a write returns nothing. IGNORE
-- because the definitions usually exist, and one that does must not keep out the others.
SET @now = {now}, @expires_at = {after(:lease_sec)}, @locked_at = CASE WHEN :lease_sec IS NOT NULL THEN {now} END;
INSERT IGNORE INTO workflow_definitions (workflow_name, source_hash, source_code, created_at) VALUES :definitions;
-- [required]
INSERT INTO workflow_instances
       (instance_id, workflow_name, source_hash, owner_service, status, headers, input_data, framework, started_at,
        updated_at,
        locked_by, locked_at, lock_timeout_seconds, lock_expires_at, lock_token)
VALUES :rows {on_conflict_do_nothing()};
SELECT CAST(@expires_at AS DATETIME(6))

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

-- complete_set -> instance_id, status, lock_token, locked_by
-- Complete many leased instances with their outputs in one statement, as `finish` completes one. Return those that were
-- not completed, each with its state when the statement began; NULL for one that does not exist. The CASE hides the state
-- from the planner, which could read all running instances by its index. Only for databases with the feature
-- `one_statement_writes`.
WITH item AS (
  SELECT * FROM unnest(:instance_ids::text[], :tokens::bigint[], :worker_ids::text[], :outputs::text[])
         AS item (instance_id, token, worker_id, output_data)),
seen AS (
  SELECT i.instance_id, i.xmin AS version, item.output_data FROM item JOIN workflow_instances i USING (instance_id)
   WHERE CASE WHEN i.status = 'running' AND i.lock_token = item.token AND i.locked_by = item.worker_id THEN 1 END = 1),
done AS (
  UPDATE workflow_instances i
     SET status = 'completed', output_data = seen.output_data, updated_at = {now}, lock_token = i.lock_token + 1,
         locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
    FROM seen WHERE i.instance_id = seen.instance_id AND i.xmin = seen.version
  RETURNING i.instance_id, NULL AS workflow_name),
timers AS (DELETE FROM workflow_timer_subscriptions t USING done WHERE t.instance_id = done.instance_id),
waits AS (DELETE FROM perdure_waits w USING done WHERE w.instance_id = done.instance_id)
SELECT item.instance_id, i.status, i.lock_token, i.locked_by
  FROM item LEFT JOIN workflow_instances i USING (instance_id)
 WHERE NOT EXISTS (SELECT 1 FROM done WHERE done.instance_id = item.instance_id)
   AND (SELECT {announcement} FROM done) IS NOT NULL

-- complete_many -> count
-- Complete leased instances; their timers and waits are left to `clear_many`. One statement for all items, in JSON: it is
-- faster than one for each item. Only for databases with the feature `repeated_calls`.
UPDATE workflow_instances
   SET status = 'completed', output_data = json_extract(item.value, '$[3]'), updated_at = {now},
       lock_token = lock_token + 1, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL,
       current_activity_id = COALESCE(json_extract(item.value, '$[4]'), current_activity_id)
  FROM json_each(:items) item
 WHERE instance_id = json_extract(item.value, '$[0]') AND status = 'running'
   AND lock_token = json_extract(item.value, '$[1]') AND locked_by = json_extract(item.value, '$[2]')

-- lock_many -> instance_id, status, lock_token, locked_by
-- Lock the rows of a batch in one order, and return their state.
SELECT instance_id, status, lock_token, locked_by FROM workflow_instances
 WHERE instance_id {any(:instance_ids)} ORDER BY {ordinal(instance_id)} {for_update}

-- complete_locked -> instance_id
-- Complete instances that lock_many has locked, and return those that have timers or waits, for `clear_many`. Only for
-- databases where a write returns nothing.
UPDATE workflow_instances
   SET status = 'completed', output_data = ELT(FIELD(instance_id, :instance_ids), :outputs), updated_at = {now},
       lock_token = lock_token + 1, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
 WHERE instance_id IN (:instance_ids);
SELECT instance_id FROM workflow_timer_subscriptions WHERE instance_id IN (:instance_ids)
UNION ALL
SELECT instance_id FROM perdure_waits WHERE instance_id IN (:instance_ids)

-- clear_many
-- Remove all timers and waits of many instances.
DELETE {from_index(workflow_timer_subscriptions, unique_instance_timer, created_at)}
 WHERE instance_id {any(:ids)};
DELETE {from_index(perdure_waits, idx_perdure_waits_subscription, activity_id)}
 WHERE instance_id {any(:ids)}

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
