-- back_off -> count
-- End a lease that is current, and keep every worker away for a while. The instance keeps its time: nothing happened.
UPDATE workflow_instances
   SET locked_by = :owner, locked_at = {now}, lock_token = lock_token + 1, lock_expires_at = {after(:seconds)},
       updated_at = updated_at
 WHERE instance_id = :instance_id AND lock_token = :token AND locked_by = :worker_id

-- standing -> since, next_retry_at, progressed_at
-- Return since when and until when an instance is kept away from workers, and when something last happened to it.
SELECT {utc(locked_at)}, {utc(lock_expires_at)}, {utc(updated_at)} FROM workflow_instances
 WHERE instance_id = :instance_id

-- mark
-- Mark an instance as stuck, since the first attempt as long as the number of attempts grows, or stays and nothing
-- has happened to the instance.
INSERT INTO perdure_stuck (instance_id, reason, tries, since, next_retry_at, progressed_at)
VALUES (:instance_id, :reason, :tries, :since, :next_retry_at, :progressed_at)
{on_conflict_do_update(instance_id)}
       since = CASE WHEN perdure_stuck.tries < :tries
                      OR (perdure_stuck.tries = :tries AND perdure_stuck.progressed_at = :progressed_at)
                    THEN perdure_stuck.since ELSE :since END,
       reason = :reason, tries = :tries, next_retry_at = :next_retry_at, progressed_at = :progressed_at

-- clear
-- Remove the marks of instances that are no longer stuck.
DELETE {from_index(perdure_stuck, PRIMARY, since)} WHERE instance_id {any(:ids)}

-- get -> instance_id, reason, tries, since, next_retry_at
-- Return those of these instances that are stuck: nothing has happened to them since.
SELECT s.instance_id, s.reason, s.tries, {utc(s.since)}, {utc(s.next_retry_at)}
  FROM perdure_stuck s WHERE s.instance_id {any(:ids)} AND {unchanged(s)}

-- list -> instance_id, reason, tries, since, next_retry_at
-- Return stuck instances, the longest stuck first, after a position in that order.
SELECT s.instance_id, s.reason, s.tries, {utc(s.since)}, {utc(s.next_retry_at)}
  FROM perdure_stuck s {index(idx_perdure_stuck_since)}
 WHERE s.since >= :since AND (s.since > :since OR {ordinal(s.instance_id)} > :instance_id) AND {unchanged(s)}
 ORDER BY s.since, {ordinal(s.instance_id)} LIMIT :limit
