-- fence -> count
-- Lock the row until the commit if the lease is current. A finished instance keeps its time: retention counts from it.
UPDATE workflow_instances SET updated_at = CASE WHEN finished_at IS NULL THEN {now} ELSE updated_at END
 WHERE instance_id = :instance_id AND (lock_token = :token AND locked_by = :worker_id OR :token IS NULL)

-- standing -> status, lock_token, locked_by, workflow_name
-- Return what decides whether a write was rejected, and why.
SELECT status, lock_token, locked_by, workflow_name FROM workflow_instances WHERE instance_id = :instance_id
