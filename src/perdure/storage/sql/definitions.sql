-- known -> workflow_name, source_hash
-- Return the stored versions of some workflows.
SELECT workflow_name, source_hash FROM workflow_definitions WHERE workflow_name {any(:names)}

-- define
-- Insert a version of a workflow, unless it exists.
INSERT INTO workflow_definitions (workflow_name, source_hash, source_code, created_at)
VALUES (:workflow_name, :source_hash, :source_code, {now}) {on_conflict_do_nothing(workflow_name, source_hash)}
