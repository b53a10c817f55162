-- copy
-- Copy a history to the archive, under the instance's own id or its generation's, with the original ids and times.
INSERT INTO workflow_history_archive
       (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at, archived_at,
        original_id, original_created_at)
SELECT :archived_as, activity_id, event_type, data_type, event_data, event_data_binary, created_at, {now},
       id, created_at
  FROM workflow_history {index(idx_history_order)} WHERE instance_id = :instance_id ORDER BY id

-- clear
-- Remove what was copied, and only that: other frameworks may append meanwhile.
DELETE FROM workflow_history
 WHERE instance_id = :instance_id
   AND id IN (SELECT original_id FROM workflow_history_archive
               WHERE instance_id = :archived_as AND original_id IS NOT NULL)

-- list -> id, original_id, instance_id, activity_id, event_type, event_data, event_data_binary, data_type,
--   created_at, archived_at
-- Return the archived events in the order of recording; those archived by Edda or Romancy have no original id.
SELECT id, original_id, instance_id, activity_id, event_type, event_data, event_data_binary, data_type,
       COALESCE(original_created_at, created_at), archived_at
  FROM workflow_history_archive WHERE instance_id = :instance_id
 ORDER BY COALESCE(original_id, 0), id LIMIT :limit

-- claimed -> channel
-- Return the channels of messages that an instance has claimed but not taken.
SELECT DISTINCT m.channel FROM channel_message_claims k JOIN channel_messages m ON m.message_id = k.message_id
 WHERE k.instance_id = :instance_id

-- unsubscribe
-- Remove the timers, subscriptions, cursors, claims and memberships of an instance.
DELETE FROM workflow_timer_subscriptions WHERE instance_id = :instance_id;
DELETE FROM channel_subscriptions WHERE instance_id = :instance_id;
DELETE FROM perdure_waits WHERE instance_id = :instance_id;
DELETE FROM perdure_taken_messages WHERE instance_id = :instance_id;
DELETE FROM channel_delivery_cursors WHERE instance_id = :instance_id;
DELETE FROM channel_message_claims WHERE instance_id = :instance_id;
DELETE FROM workflow_group_memberships WHERE instance_id = :instance_id

-- generation -> count
-- Store a finished generation as an instance of its own, if the name is free.
INSERT INTO workflow_instances
       (instance_id, workflow_name, source_hash, owner_service, framework, status, current_activity_id, continued_from,
        started_at, updated_at, input_data, lock_timeout_seconds, headers)
SELECT :generation, workflow_name, source_hash, owner_service, framework, 'recurred', current_activity_id,
       continued_from, started_at, {now}, input_data, lock_timeout_seconds, headers
  FROM workflow_instances WHERE instance_id = :instance_id
{on_conflict_do_nothing(instance_id)}

-- restart
-- Begin the next generation in the live row and keep the lease. Remove compensations, timers and waits of the last one.
UPDATE workflow_instances
   SET input_data = :input_data, output_data = NULL, current_activity_id = NULL, continued_from = :generation,
       started_at = {now}, updated_at = {now}
 WHERE instance_id = :instance_id;
DELETE FROM workflow_compensations WHERE instance_id = :instance_id;
DELETE FROM workflow_timer_subscriptions WHERE instance_id = :instance_id;
DELETE FROM perdure_waits WHERE instance_id = :instance_id
