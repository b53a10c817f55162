-- now -> now
-- Return the database's clock.
SELECT {now}

-- beat -> count
-- Record that a known worker is alive.
UPDATE perdure_workers SET beat_at = {now}, info = COALESCE(:info, info) WHERE worker_id = :worker_id

-- enter
-- Insert a worker; if another connection has just inserted it, that was its start.
INSERT INTO perdure_workers (worker_id, started_at, beat_at, info) VALUES (:worker_id, {now}, {now}, :info)
{on_conflict_do_update(worker_id)} beat_at = {now}, info = COALESCE(:info, perdure_workers.info)

-- leave
-- Remove a worker that has stopped.
DELETE FROM perdure_workers WHERE worker_id = :worker_id

-- forget
-- Remove workers that died long ago without notice.
DELETE FROM perdure_workers WHERE beat_at < {ago(:silent_sec)}

-- list -> worker_id, started_at, beat_at, info
-- Return the workers, the longest running first; with a duration only those with a heartbeat within it.
SELECT worker_id, started_at, beat_at, info FROM perdure_workers
 WHERE (beat_at >= {ago(:alive_sec)} OR :alive_sec IS NULL)
 ORDER BY started_at, {ordinal(worker_id)} LIMIT :limit
