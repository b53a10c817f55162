-- schemas -> schema_name, rank
-- Return PostgreSQL's schemas that have our tables, the best first: as `find_schema` chooses, then any other (2).
SELECT n.nspname::text, CASE WHEN n.nspname = 'perdure' THEN 0
                             WHEN n.nspname = 'public' OR n.nspname = ANY (current_schemas(false)) THEN 1 ELSE 2 END
  FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace
 WHERE t.relname = 'perdure_waits' AND t.relkind IN ('r', 'p')
 ORDER BY 2, array_position(current_schemas(false), n.nspname), 1

-- savepoint
-- Set a savepoint. Its name is not `item`, because on MySQL a second savepoint of that name would remove the first.
SAVEPOINT perdure_start

-- release
-- Keep what was written since the savepoint.
RELEASE SAVEPOINT perdure_start

-- undo
-- Undo what was written since the savepoint.
ROLLBACK TO SAVEPOINT perdure_start

-- find -> instance_id, workflow_name, input_data, framework, status, continued_from
-- Return what identifies an instance.
SELECT instance_id, workflow_name, input_data, framework, status, continued_from
  FROM workflow_instances WHERE instance_id = :instance_id

-- find [mysql]
-- Differs because bytes are the same in every character set that a session may use.
SELECT CAST(instance_id AS BINARY), CAST(workflow_name AS BINARY), CAST(input_data AS BINARY), framework, status,
       CAST(continued_from AS BINARY)
  FROM workflow_instances WHERE instance_id = :instance_id

-- find_again -> instance_id, workflow_name, input_data, framework, status, continued_from
-- Return the same after an insert that found the id taken.
SELECT instance_id, workflow_name, input_data, framework, status, continued_from
  FROM workflow_instances WHERE instance_id = :instance_id

-- find_again [mysql]
-- Differs because the transaction's snapshot may be older than the row: only a locking read sees it.
SELECT CAST(instance_id AS BINARY), CAST(workflow_name AS BINARY), CAST(input_data AS BINARY), framework, status,
       CAST(continued_from AS BINARY)
  FROM workflow_instances WHERE instance_id = :instance_id LOCK IN SHARE MODE
