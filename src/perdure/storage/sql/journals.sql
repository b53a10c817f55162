-- append_and_complete -> event_id, accepted
-- Record events as `append_set` of history.sql does, and complete instances as `complete_set` of instances.sql does, in
-- one statement. It can write a row only once, so the completion of an instance is also the fence of its events. An
-- instance is not completed, and has none of its events recorded, if it was changed since the statement began, or if one
-- of the events exists. Return a row for each event, with its id, and then one for each completion, both in order. Only
-- for databases with the feature `one_statement_writes`.
WITH {events},
ending AS (
  SELECT * FROM unnest(:ending_ids::text[], :ending_tokens::bigint[], :ending_worker_ids::text[], :outputs::text[])
                WITH ORDINALITY
         AS ending (instance_id, token, worker_id, output_data, position)),
newest AS (
  SELECT DISTINCT ON (instance_id) instance_id, token, worker_id, activity_id
    FROM item ORDER BY instance_id, position DESC),
seen AS (
  SELECT i.instance_id, i.xmin AS version, ending.output_data, newest.activity_id
    FROM ending JOIN workflow_instances i USING (instance_id) LEFT JOIN newest USING (instance_id)
   WHERE CASE WHEN i.status = 'running' AND i.lock_token = ending.token AND i.locked_by = ending.worker_id THEN 1 END = 1
     AND NOT EXISTS (SELECT 1 FROM item JOIN workflow_history h USING (instance_id, activity_id)
                      WHERE item.instance_id = ending.instance_id)),
done AS (
  UPDATE workflow_instances i
     SET status = 'completed', output_data = seen.output_data, updated_at = {now}, lock_token = i.lock_token + 1,
         locked_by = NULL, locked_at = NULL, lock_expires_at = NULL,
         current_activity_id = COALESCE(seen.activity_id, i.current_activity_id)
    FROM seen WHERE i.instance_id = seen.instance_id AND i.xmin = seen.version
  RETURNING i.instance_id, NULL AS workflow_name),
fence AS (
  UPDATE workflow_instances i SET updated_at = {now}, current_activity_id = newest.activity_id
    FROM newest
   WHERE i.instance_id = newest.instance_id AND i.lock_token = newest.token AND i.locked_by = newest.worker_id
     AND NOT EXISTS (SELECT 1 FROM ending WHERE ending.instance_id = newest.instance_id)
  RETURNING i.instance_id),
fenced AS (SELECT instance_id FROM fence UNION ALL SELECT instance_id FROM done),
event AS (
  {insert_event}
  SELECT instance_id, activity_id, event_type, data_type, event_data, event_data_binary, COALESCE(created_at, {now})
    FROM item JOIN fenced USING (instance_id) ORDER BY position
  ON CONFLICT (instance_id, activity_id) DO NOTHING RETURNING id, instance_id, activity_id),
timers AS (DELETE FROM workflow_timer_subscriptions t USING done WHERE t.instance_id = done.instance_id),
waits AS (DELETE FROM perdure_waits w USING done WHERE w.instance_id = done.instance_id)
SELECT event_id, accepted FROM (
  SELECT 1 AS kind, position, event.id AS event_id, fenced.instance_id IS NOT NULL AS accepted
    FROM item LEFT JOIN fenced USING (instance_id) LEFT JOIN event USING (instance_id, activity_id)
  UNION ALL
  SELECT 2, position, NULL, done.instance_id IS NOT NULL FROM ending LEFT JOIN done USING (instance_id)) answer
 WHERE (SELECT {announcement} FROM done) IS NOT NULL
 ORDER BY kind, position
