-- add -> id
-- Record that a person is about to do something.
INSERT INTO perdure_audit (acted_at, actor, action, target, query, reason, outcome)
VALUES ({now}, :actor, :action, :target, :query, :reason, :outcome) {returning(id)}

-- relate
-- Relate an entry to the runs that it is about, those of them that exist, if the entry does.
INSERT INTO perdure_audit_runs (instance_id, audit_id)
SELECT i.instance_id, a.id FROM perdure_audit a, workflow_instances i
 WHERE a.id = :audit_id AND i.instance_id {any(:ids)}
   AND NOT EXISTS (SELECT 1 FROM perdure_audit_runs r WHERE r.instance_id = i.instance_id AND r.audit_id = a.id)

-- finish
-- Record the outcome.
UPDATE perdure_audit SET outcome = :outcome WHERE id = :audit_id

-- latest -> id, acted_at, actor, action, target, query, reason, outcome
-- Return entries, the last one first, before a position in that order.
SELECT id, {utc(acted_at)}, actor, action, target, query, reason, outcome FROM perdure_audit
 WHERE id < :before ORDER BY id DESC LIMIT :limit

-- related -> audit_id
-- Return the entries about a run, the last one first.
SELECT audit_id FROM perdure_audit_runs WHERE instance_id = :instance_id AND audit_id < :before
 ORDER BY audit_id DESC LIMIT :limit

-- get -> id, acted_at, actor, action, target, query, reason, outcome
-- Return these entries.
SELECT id, {utc(acted_at)}, actor, action, target, query, reason, outcome FROM perdure_audit WHERE id {any(:ids)}

-- get [postgresql]
-- Differs because the numbers are an array.
SELECT id, {utc(acted_at)}, actor, action, target, query, reason, outcome FROM perdure_audit
 WHERE id = ANY(:ids::bigint[])

-- old -> acted_at
-- Return the times of entries that are older than a duration, the oldest first.
SELECT {utc(acted_at)} FROM perdure_audit {index(idx_perdure_audit_acted)} WHERE acted_at < {ago(:age_sec)}
 ORDER BY acted_at, id LIMIT :limit

-- remove
-- Remove the entries up to a time.
DELETE {from_index(perdure_audit, idx_perdure_audit_acted, actor)} WHERE acted_at <= :acted_at
