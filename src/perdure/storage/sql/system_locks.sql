-- see -> state
-- Return the state of a lock for a worker, without locking its row: a contender must not block the owner's renewal.
SELECT CASE WHEN locked_by = :worker_id THEN 'ours'
            WHEN locked_by IS NULL OR lock_expires_at IS NULL OR lock_expires_at <= {now} THEN 'free'
            ELSE 'held' END
  FROM system_locks WHERE lock_name = :lock_name

-- free -> lock_name
-- Lock and return the row of a lock that can be taken over; nothing if another transaction has locked it.
SELECT lock_name FROM system_locks
 WHERE lock_name = :lock_name AND (locked_by IS NULL OR lock_expires_at IS NULL OR lock_expires_at <= {now})
{skip_locked}

-- hold -> count
-- Set a new expiry: for its owner, or without one for a row that this transaction has found free and locked.
UPDATE system_locks SET locked_by = :worker_id, locked_at = {now}, lock_expires_at = {after(:timeout_sec)}
 WHERE lock_name = :lock_name AND (locked_by = :owner OR :owner IS NULL)

-- enter -> count
-- Take a lock that has no row.
INSERT INTO system_locks (lock_name, locked_by, locked_at, lock_expires_at)
VALUES (:lock_name, :worker_id, {now}, {after(:timeout_sec)})
{on_conflict_do_nothing(lock_name)}

-- raise_token
-- Increase the token.
INSERT INTO perdure_lock_tokens (lock_name, token) VALUES (:lock_name, 1)
{on_conflict_do_update(lock_name)} token = perdure_lock_tokens.token + 1

-- lease -> token, lock_expires_at
-- Return the lease of the owner.
SELECT t.token, l.lock_expires_at FROM system_locks l JOIN perdure_lock_tokens t ON t.lock_name = l.lock_name
 WHERE l.lock_name = :lock_name AND l.locked_by = :worker_id

-- release
-- Free a lock for every worker. Romancy takes only rows with a time in the past, and this one is past in every time
-- zone.
UPDATE system_locks SET locked_by = NULL, locked_at = NULL, lock_expires_at = '2000-01-01 00:00:00.000000'
 WHERE lock_name = :lock_name AND locked_by = :worker_id

-- cleanup -> count
-- Remove rows without information, also those that Edda released without a time, which Romancy could never take.
DELETE FROM system_locks WHERE lock_expires_at <= {now} OR locked_by IS NULL
