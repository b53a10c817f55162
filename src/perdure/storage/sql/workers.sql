-- now
-- The database's clock.
SELECT {now}

-- beat
-- A known worker is alive.
UPDATE perdure_workers SET beat_at = {now}, info = COALESCE(:info, info) WHERE worker_id = :worker_id

-- enter
-- A new worker is alive; if it has just said so elsewhere, that was the first time.
INSERT INTO perdure_workers (worker_id, started_at, beat_at, info) VALUES (:worker_id, {now}, {now}, :info)
{on_conflict_do_update(worker_id)} beat_at = {now}, info = COALESCE(:info, perdure_workers.info)

-- leave
-- A worker has stopped.
DELETE FROM perdure_workers WHERE worker_id = :worker_id

-- forget
-- Workers that ended without a word long ago.
DELETE FROM perdure_workers WHERE beat_at < {ago(:silent_sec)}

-- list
-- Workers, the longest running first; with a span only those heard of within it.
SELECT worker_id, started_at, beat_at, info FROM perdure_workers
 WHERE (beat_at >= {ago(:alive_sec)} OR :alive_sec IS NULL)
 ORDER BY started_at, {ordinal(worker_id)} LIMIT :limit
