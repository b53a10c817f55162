-- acquire -> instance_id, lock_token, lock_expires_at
-- Take a free or expired lease; the token grows. Never wait for a row that another transaction has locked.
UPDATE workflow_instances
   SET locked_by = :worker_id, locked_at = {now}, lock_token = lock_token + 1,
       lock_expires_at = {after(COALESCE(lock_timeout_seconds, :timeout_sec))}
 WHERE instance_id = :instance_id AND {takeable} {returning(instance_id, lock_token, lock_expires_at)}

-- acquire [postgresql]
-- Differs because SKIP LOCKED needs a SELECT, and because it takes any number of leases.
WITH free AS (
  SELECT instance_id FROM workflow_instances WHERE instance_id {any(:ids)} AND {takeable} FOR UPDATE SKIP LOCKED)
UPDATE workflow_instances i
   SET locked_by = :worker_id, locked_at = {now}, lock_token = i.lock_token + 1,
       lock_expires_at = {after(COALESCE(i.lock_timeout_seconds, :timeout_sec::float8))}
  FROM free WHERE i.instance_id = free.instance_id
RETURNING i.instance_id, i.lock_token, i.lock_expires_at

-- acquire [mysql]
-- Differs because MySQL has no RETURNING, and merges a derived table without LIMIT, which would wait for the row. The
-- shared column has ON UPDATE, which must not apply: it exists on one database only, and does not use our clock.
-- [required]
UPDATE workflow_instances i
  JOIN (SELECT instance_id FROM workflow_instances
         WHERE instance_id = :instance_id AND {takeable} LIMIT 1 FOR UPDATE SKIP LOCKED) free
    ON free.instance_id = i.instance_id
   SET i.locked_by = :worker_id, i.locked_at = {now}, i.lock_token = i.lock_token + 1,
       i.lock_expires_at = {after(COALESCE(i.lock_timeout_seconds, :timeout_sec))},
       i.updated_at = i.updated_at;
SELECT instance_id, lock_token, lock_expires_at FROM workflow_instances WHERE instance_id = :instance_id

-- take -> instance_id, lock_token, lock_expires_at
-- Take those of these leases that are free; with the feature `one_statement_writes`, `acquire` does.
UPDATE workflow_instances
   SET locked_by = :worker_id, locked_at = {now}, lock_token = lock_token + 1,
       lock_expires_at = {after(COALESCE(lock_timeout_seconds, :timeout_sec))}
 WHERE instance_id {any(:ids)} AND {takeable} {returning(instance_id, lock_token, lock_expires_at)}

-- take [mysql]
-- Differs because there is no RETURNING: a unique mark distinguishes what was taken from what the worker held before.
-- Here and below, the join order is fixed: any other would wait for rows that are to be skipped.
UPDATE (SELECT instance_id FROM workflow_instances {index(PRIMARY)}
         WHERE instance_id {any(:ids)} AND {takeable} LIMIT :limit FOR UPDATE SKIP LOCKED) free
       STRAIGHT_JOIN workflow_instances i {index(PRIMARY)} ON i.instance_id = free.instance_id
   SET i.locked_by = :mark, i.locked_at = {now}, i.lock_token = i.lock_token + 1, i.updated_at = i.updated_at,
       i.lock_expires_at = {after(COALESCE(i.lock_timeout_seconds, :timeout_sec))};
-- [answer]
SELECT instance_id, lock_token, lock_expires_at FROM workflow_instances
 WHERE instance_id {any(:ids)} AND locked_by = :mark;
UPDATE (SELECT instance_id FROM workflow_instances {index(PRIMARY)}
         WHERE instance_id {any(:ids)} AND locked_by = :mark LIMIT :limit FOR UPDATE SKIP LOCKED) taken
       STRAIGHT_JOIN workflow_instances i {index(PRIMARY)} ON i.instance_id = taken.instance_id
   SET i.locked_by = :worker_id, i.updated_at = i.updated_at

-- claim -> {instance}
-- Take at most `:limit` of the leases of these instances that a worker may take now, and return the instances. Rows that
-- another transaction has locked are skipped before they count, so two workers that ask for the same instances take
-- different ones.
UPDATE workflow_instances
   SET locked_by = :worker_id, locked_at = {now}, lock_token = lock_token + 1,
       lock_expires_at = {after(COALESCE(lock_timeout_seconds, :timeout_sec))}
 WHERE instance_id IN (SELECT instance_id FROM workflow_instances
                        WHERE instance_id {any(:ids)} AND claimable_at <= {now} LIMIT :limit)
RETURNING {instance}

-- claim [postgresql]
-- Differs because SKIP LOCKED needs a SELECT of its own; an array is looked up by the index, whatever the planner assumes.
WITH free AS (
  SELECT instance_id FROM workflow_instances
   WHERE instance_id {any(:ids)} AND claimable_at <= {now} LIMIT :limit FOR UPDATE SKIP LOCKED)
UPDATE workflow_instances
   SET locked_by = :worker_id, locked_at = {now}, lock_token = lock_token + 1,
       lock_expires_at = {after(COALESCE(lock_timeout_seconds, :timeout_sec::float8))}
 WHERE instance_id = ANY(ARRAY(SELECT instance_id FROM free))
RETURNING {instance}

-- claim [mysql]
-- Differs as `take` does. The returned owner is still the mark.
UPDATE (SELECT instance_id FROM workflow_instances {index(PRIMARY)}
         WHERE instance_id {any(:ids)} AND claimable_at <= {now} LIMIT :limit FOR UPDATE SKIP LOCKED) free
       STRAIGHT_JOIN workflow_instances i {index(PRIMARY)} ON i.instance_id = free.instance_id
   SET i.locked_by = :mark, i.locked_at = {now}, i.lock_token = i.lock_token + 1, i.updated_at = i.updated_at,
       i.lock_expires_at = {after(COALESCE(i.lock_timeout_seconds, :timeout_sec))};
-- [answer]
SELECT {instance} FROM workflow_instances WHERE instance_id {any(:ids)} AND locked_by = :mark;
UPDATE (SELECT instance_id FROM workflow_instances {index(PRIMARY)}
         WHERE instance_id {any(:ids)} AND locked_by = :mark LIMIT :limit FOR UPDATE SKIP LOCKED) taken
       STRAIGHT_JOIN workflow_instances i {index(PRIMARY)} ON i.instance_id = taken.instance_id
   SET i.locked_by = :worker_id, i.updated_at = i.updated_at

-- release -> count
-- Release the lease of its holder; with a token, only that lease.
UPDATE workflow_instances SET locked_by = NULL, locked_at = NULL, lock_expires_at = NULL, updated_at = {now}
 WHERE instance_id = :instance_id AND locked_by = :worker_id AND (lock_token = :token OR :token IS NULL)

-- release [postgresql]
-- Differs because it also notifies, if there is something to announce.
WITH released AS (
  UPDATE workflow_instances SET locked_by = NULL, locked_at = NULL, lock_expires_at = NULL, updated_at = {now}
   WHERE instance_id = :instance_id AND locked_by = :worker_id AND (lock_token = :token OR :token IS NULL)
  RETURNING instance_id)
SELECT CASE WHEN :payload::text IS NOT NULL THEN pg_notify(:kind, :payload) END FROM released

-- renew -> instance_id, locked_by, lock_token, lock_expires_at
-- Renew those of these leases that are current, and return them.
UPDATE workflow_instances SET lock_expires_at = {after(COALESCE(lock_timeout_seconds, :timeout_sec))}
  FROM json_each(:leases)
 WHERE instance_id = json_extract(value, '$[0]') AND locked_by = json_extract(value, '$[1]')
   AND (lock_token = json_extract(value, '$[2]') OR :any_token)
RETURNING instance_id, locked_by, lock_token, lock_expires_at

-- renew [postgresql]
-- Differs because a row may be locked by a run's own open transaction: its lease is unchanged, and not lost.
WITH wanted AS (
  SELECT * FROM unnest(:ids::text[], :owners::text[], :tokens::bigint[]) AS wanted (instance_id, worker_id, token)),
free AS (
  SELECT i.instance_id FROM wanted w JOIN workflow_instances i ON i.instance_id = w.instance_id
   WHERE i.locked_by = w.worker_id AND (i.lock_token = w.token OR :any_token) FOR UPDATE OF i SKIP LOCKED),
renewed AS (
  UPDATE workflow_instances i
     SET lock_expires_at = {after(COALESCE(i.lock_timeout_seconds, :timeout_sec::float8))}
    FROM free WHERE i.instance_id = free.instance_id
  RETURNING i.instance_id, i.locked_by, i.lock_token, i.lock_expires_at)
SELECT * FROM renewed
 UNION ALL
SELECT i.instance_id, i.locked_by, i.lock_token, i.lock_expires_at
  FROM wanted w JOIN workflow_instances i ON i.instance_id = w.instance_id
 WHERE i.locked_by = w.worker_id AND (i.lock_token = w.token OR :any_token)
   AND i.instance_id NOT IN (SELECT instance_id FROM renewed)

-- renew [mysql]
-- Differs likewise, and because a write returns nothing: the caller's worker id shows which rows it holds now.
UPDATE (SELECT instance_id FROM workflow_instances {index(PRIMARY)}
         WHERE instance_id {any(:ids)} AND (instance_id, locked_by, IF(:any_token, 0, lock_token)) {any(:leases)}
         LIMIT :limit FOR UPDATE SKIP LOCKED) free
       STRAIGHT_JOIN workflow_instances i {index(PRIMARY)} ON i.instance_id = free.instance_id
   SET i.lock_expires_at = {after(COALESCE(i.lock_timeout_seconds, :timeout_sec))}, i.updated_at = i.updated_at;
SELECT instance_id, locked_by, lock_token, lock_expires_at FROM workflow_instances WHERE instance_id {any(:ids)}

-- sweep -> instance_id, workflow_name, status
-- End own leases that have expired, the oldest first, and return them. Skip those being renewed or taken.
WITH stale AS MATERIALIZED (
  SELECT instance_id FROM workflow_instances {index(idx_instances_lease)}
   WHERE framework = 'perdure' AND lock_expires_at < {ago(:grace_sec)}
   ORDER BY lock_expires_at LIMIT :limit {skip_locked})
UPDATE workflow_instances SET locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
 WHERE instance_id IN (SELECT instance_id FROM stale) RETURNING instance_id, workflow_name, status

-- sweep [mysql]
-- Differs as `take` does.
UPDATE (SELECT instance_id FROM workflow_instances {index(idx_instances_lease)}
         WHERE framework = 'perdure' AND lock_expires_at < {ago(:grace_sec)}
         ORDER BY lock_expires_at LIMIT :limit FOR UPDATE SKIP LOCKED) stale
       STRAIGHT_JOIN workflow_instances i {index(PRIMARY)} ON i.instance_id = stale.instance_id
   SET i.locked_by = :mark, i.updated_at = i.updated_at;
-- [answer]
SELECT instance_id, workflow_name, status FROM workflow_instances {index(idx_instances_lease)}
 WHERE framework = 'perdure' AND lock_expires_at < {ago(:grace_sec)} AND locked_by = :mark
 ORDER BY lock_expires_at LIMIT :limit;
UPDATE (SELECT instance_id FROM workflow_instances {index(idx_instances_lease)}
         WHERE framework = 'perdure' AND lock_expires_at < {ago(:grace_sec)} AND locked_by = :mark
         ORDER BY lock_expires_at LIMIT :limit FOR UPDATE SKIP LOCKED) swept
       STRAIGHT_JOIN workflow_instances i {index(PRIMARY)} ON i.instance_id = swept.instance_id
   SET i.locked_by = NULL, i.locked_at = NULL, i.lock_expires_at = NULL, i.updated_at = i.updated_at
