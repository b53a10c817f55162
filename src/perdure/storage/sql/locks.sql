-- acquire
-- Take a free or expired lease; the token grows. Never waits for a row that somebody has locked.
UPDATE workflow_instances
   SET locked_by = :worker_id, locked_at = {now}, lock_token = lock_token + 1,
       lock_expires_at = {after(COALESCE(lock_timeout_seconds, :timeout_sec))}
 WHERE instance_id = :instance_id AND {takeable} {returning(instance_id, lock_token, lock_expires_at)}

-- acquire [postgresql]
-- Differs because SKIP LOCKED goes with a SELECT only, and because it takes as many as there are.
WITH free AS (
  SELECT instance_id FROM workflow_instances WHERE instance_id {any(:ids)} AND {takeable} FOR UPDATE SKIP LOCKED)
UPDATE workflow_instances i
   SET locked_by = :worker_id, locked_at = {now}, lock_token = i.lock_token + 1,
       lock_expires_at = {after(COALESCE(i.lock_timeout_seconds, :timeout_sec::float8))}
  FROM free WHERE i.instance_id = free.instance_id
RETURNING i.instance_id, i.lock_token, i.lock_expires_at

-- acquire [mysql]
-- Differs because MySQL has no RETURNING, and merges a derived table without LIMIT, which would wait for the row.
-- The family's column has ON UPDATE, which ours must not follow: on one database only, and not by the clock we judge by.
UPDATE workflow_instances i
  JOIN (SELECT instance_id FROM workflow_instances
         WHERE instance_id = :instance_id AND {takeable} LIMIT 1 FOR UPDATE SKIP LOCKED) free
    ON free.instance_id = i.instance_id
   SET i.locked_by = :worker_id, i.locked_at = {now}, i.lock_token = i.lock_token + 1,
       i.lock_expires_at = {after(COALESCE(i.lock_timeout_seconds, :timeout_sec))},
       i.updated_at = i.updated_at;
SELECT instance_id, lock_token, lock_expires_at FROM workflow_instances WHERE instance_id = :instance_id

-- free
-- The instances that can be taken, locked. Only MySQL needs it, for many: it would not tell which it took.
SELECT instance_id FROM workflow_instances WHERE instance_id {any(:ids)} AND {takeable} {skip_locked}

-- take
-- Take those of these leases that are free; PostgreSQL's `acquire` does.
UPDATE workflow_instances
   SET locked_by = :worker_id, locked_at = {now}, lock_token = lock_token + 1,
       lock_expires_at = {after(COALESCE(lock_timeout_seconds, :timeout_sec))}
 WHERE instance_id {any(:ids)} AND {takeable} {returning(instance_id, lock_token, lock_expires_at)}

-- take [mysql]
-- Differs because there is no RETURNING: these are free, and locked by this transaction.
UPDATE workflow_instances
   SET locked_by = :worker_id, locked_at = {now}, lock_token = lock_token + 1,
       lock_expires_at = {after(COALESCE(lock_timeout_seconds, :timeout_sec))}, updated_at = updated_at
 WHERE instance_id {any(:ids)};
SELECT instance_id, lock_token, lock_expires_at FROM workflow_instances WHERE instance_id {any(:ids)}

-- release
-- Only by its holder; with a token, only that lease.
UPDATE workflow_instances SET locked_by = NULL, locked_at = NULL, lock_expires_at = NULL, updated_at = {now}
 WHERE instance_id = :instance_id AND locked_by = :worker_id AND (lock_token = :token OR :token IS NULL)

-- held
-- Which of these leases are current, and until when; read where a renewal passed over a locked row.
SELECT instance_id, lock_token, lock_expires_at FROM workflow_instances
 WHERE instance_id {any(:ids)} AND locked_by = :worker_id

-- free_to_renew
-- The rows of a worker's leases that nobody has locked: a run's own open transaction is not a lost lease.
SELECT instance_id, lock_token FROM workflow_instances
 WHERE instance_id {any(:ids)} AND locked_by = :worker_id ORDER BY instance_id {skip_locked}

-- renew
-- A new expiry for leases whose rows are locked by this transaction.
UPDATE workflow_instances
   SET lock_expires_at = {after(COALESCE(lock_timeout_seconds, :timeout_sec))}, updated_at = updated_at
 WHERE instance_id {any(:ids)} AND locked_by = :worker_id

-- renew [postgresql]
-- Differs by a cast.
UPDATE workflow_instances SET lock_expires_at = {after(COALESCE(lock_timeout_seconds, :timeout_sec::float8))}
 WHERE instance_id {any(:ids)} AND locked_by = :worker_id

-- stale
-- Own leases that ran out, locked so that none can be renewed or taken before they are cleared.
SELECT instance_id, workflow_name, status, lock_expires_at FROM workflow_instances {index(idx_instances_lease)}
 WHERE framework = 'perdure' AND lock_expires_at < {ago(:grace_sec)}
 ORDER BY lock_expires_at LIMIT :limit {skip_locked}

-- clear
-- The leases end.
UPDATE workflow_instances
   SET locked_by = NULL, locked_at = NULL, lock_expires_at = NULL, updated_at = updated_at WHERE instance_id {any(:ids)}
