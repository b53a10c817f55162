-- append -> fenced, event_id
-- Record one event while the lease is current. The fence is a write to the instance row, first in the transaction,
-- because a read would not see a concurrent takeover.
-- [fenced]
UPDATE workflow_instances SET updated_at = {now}, current_activity_id = :activity_id
 WHERE instance_id = :instance_id AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL);
-- [event_id]
{insert_event}
SELECT instance_id, :activity_id, :event_type, :data_type, :event_data, :event_data_binary,
       COALESCE(:created_at, {now})
  FROM workflow_instances
 WHERE instance_id = :instance_id AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL)
{on_conflict_do_nothing(instance_id, activity_id)} {returning(id)}

-- append [sqlite]
-- Differs because inserting one row of VALUES is twice as fast as inserting from a SELECT, which SQLite cannot know to
-- return one row. A fence that found nothing leaves no instance to write for, and the row is skipped.
-- [fenced]
UPDATE workflow_instances SET updated_at = {now}, current_activity_id = :activity_id
 WHERE instance_id = :instance_id AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL);
-- [event_id]
INSERT OR IGNORE INTO workflow_history
       (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at)
VALUES (CASE changes() WHEN 1 THEN :instance_id END, :activity_id, :event_type, :data_type, :event_data,
        :event_data_binary, COALESCE(:created_at, {now}))
RETURNING id

-- append [postgresql]
-- Differs because a CTE makes it one statement: one round trip and no explicit transaction.
WITH fence AS (
  UPDATE workflow_instances SET updated_at = {now}, current_activity_id = :activity_id::text
   WHERE instance_id = :instance_id AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL)
  RETURNING instance_id),
event AS (
  {insert_event}
  SELECT instance_id, :activity_id, :event_type::text, :data_type::text, :event_data::text,
         :event_data_binary::bytea, COALESCE(:created_at::timestamp, {now})
    FROM fence
  ON CONFLICT (instance_id, activity_id) DO NOTHING RETURNING id)
SELECT (SELECT count(*) FROM fence), (SELECT id FROM event)

-- append_set -> event_id, fenced
-- Record events of many instances, one lease each, every event under its instance's fence, in one statement. Only for
-- databases with the feature `one_statement_writes`.
WITH {events},
fence AS (
  UPDATE workflow_instances i SET updated_at = {now}, current_activity_id = newest.activity_id
    FROM (SELECT DISTINCT ON (instance_id) * FROM item ORDER BY instance_id, position DESC) newest
   WHERE i.instance_id = newest.instance_id AND i.lock_token = newest.token AND i.locked_by = newest.worker_id
  RETURNING i.instance_id),
event AS (
  {insert_event}
  SELECT instance_id, activity_id, event_type, data_type, event_data, event_data_binary, COALESCE(created_at, {now})
    FROM item JOIN fence USING (instance_id) ORDER BY position
  ON CONFLICT (instance_id, activity_id) DO NOTHING RETURNING id, instance_id, activity_id)
SELECT event.id, fence.instance_id IS NOT NULL
  FROM item LEFT JOIN fence USING (instance_id) LEFT JOIN event USING (instance_id, activity_id) ORDER BY position

-- append_each -> inserted, last_id
-- Record the events after fence_many: the insert runs once per item. Only for databases with the feature
-- `repeated_calls`.
-- [inserted]
{insert_event}
VALUES (:instance_id, :activity_id, :event_type, :data_type, :event_data, :event_data_binary, {now})
{on_conflict_do_nothing(instance_id, activity_id)};
-- [last_id]
SELECT last_insert_rowid()

-- append_locked -> event_id, instance_id, activity_id
-- Record the events of instances that lock_many has locked, and read back the ids. One event that exists already fails
-- the whole insert, and nothing is returned. Only for databases where a write returns nothing.
SET @now = {now};
UPDATE workflow_instances
   SET updated_at = @now, current_activity_id = ELT(FIELD(instance_id, :instance_ids), :newest_ids)
 WHERE instance_id IN (:instance_ids);
-- [required]
{insert_event}
VALUES :events {on_conflict_do_nothing()};
SELECT id, instance_id, activity_id FROM workflow_history WHERE (instance_id, activity_id) IN (:keys)

-- fence_many -> count
-- Lock the row of each instance whose lease is current. One statement for all items, in JSON: it takes half as long as
-- one for each item. Only for databases with the feature `repeated_calls`.
UPDATE workflow_instances SET updated_at = {now}, current_activity_id = json_extract(item.value, '$[1]')
  FROM json_each(:items) item
 WHERE instance_id = json_extract(item.value, '$[0]') AND lock_token = json_extract(item.value, '$[2]')
   AND locked_by = json_extract(item.value, '$[3]')

-- lock_many -> instance_id, lock_token, locked_by
-- Lock the rows of a batch in one order, and return which leases are current.
SELECT instance_id, lock_token, locked_by FROM workflow_instances
 WHERE instance_id {any(:instance_ids)} ORDER BY instance_id {for_update}

-- recorded -> id, event_type, data_type, event_data, event_data_binary
-- Return the event of one activity, if it exists.
SELECT id, event_type, data_type, event_data, event_data_binary FROM workflow_history
 WHERE instance_id = :instance_id AND activity_id = :activity_id

-- page -> id, instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at
-- Return the events after an id, in order.
SELECT id, instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at
  FROM workflow_history {index(idx_history_order)}
 WHERE instance_id = :instance_id AND id > :after_id ORDER BY id LIMIT :limit

-- last -> id, instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at
-- Return the newest event of a type, searching backwards from the end. The range of one instance, in the order of both
-- columns, because PostgreSQL would otherwise search the ids of all instances, and SQLite sort the whole history.
SELECT id, instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at
  FROM workflow_history {index(idx_history_order)}
 WHERE instance_id BETWEEN :instance_id AND :instance_id AND event_type = :event_type
 ORDER BY instance_id DESC, id DESC LIMIT 1

-- of_activities -> id, instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at
-- Return the events of a few activities of many instances, each by its unique key.
SELECT id, instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at
  FROM workflow_history WHERE instance_id {any(:ids)} AND activity_id {any(:activities)}

-- count -> number
-- Return the number of events of an instance.
SELECT count(*) FROM workflow_history WHERE instance_id = :instance_id
