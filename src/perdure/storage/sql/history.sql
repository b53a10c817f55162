-- append
-- Record one event while the lease is current: the fence is a write to the instance row, first in the transaction,
-- because a takeover in flight slips past a read.
UPDATE workflow_instances SET updated_at = {now}, current_activity_id = :activity_id
 WHERE instance_id = :instance_id AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL);
INSERT INTO workflow_history
       (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at)
SELECT instance_id, :activity_id, :event_type, :data_type, :event_data, :event_data_binary,
       COALESCE(:created_at, {now})
  FROM workflow_instances
 WHERE instance_id = :instance_id AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL)
{on_conflict_do_nothing(instance_id, activity_id)} {returning(id)}

-- append [postgresql]
-- Differs because a CTE makes it one statement: one round trip and no explicit transaction.
WITH fence AS (
  UPDATE workflow_instances SET updated_at = {now}, current_activity_id = :activity_id::text
   WHERE instance_id = :instance_id AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL)
  RETURNING instance_id),
event AS (
  INSERT INTO workflow_history
         (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at)
  SELECT instance_id, :activity_id, :event_type::text, :data_type::text, :event_data::text,
         :event_data_binary::bytea, COALESCE(:created_at::timestamp, {now})
    FROM fence
  ON CONFLICT (instance_id, activity_id) DO NOTHING RETURNING id)
SELECT (SELECT count(*) FROM fence), (SELECT id FROM event)

-- recorded
-- The event of one activity, if it is there.
SELECT id, event_type, data_type, event_data, event_data_binary FROM workflow_history
 WHERE instance_id = :instance_id AND activity_id = :activity_id

-- page
-- Events after an id, in order.
SELECT id, instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at
  FROM workflow_history WHERE instance_id = :instance_id AND id > :after_id ORDER BY id LIMIT :limit

-- count
-- How many events an instance has.
SELECT count(*) FROM workflow_history WHERE instance_id = :instance_id
