-- select
-- A page of instances, newest first, is this, one of the next two, the conditions asked for, and `order`.
SELECT {instance}

-- in_any_state
-- Of one framework, whose index has them in order. It is named because MariaDB would read from the newest on down to a
-- page, and any database may think little of a state that is rare.
FROM workflow_instances {index(idx_instances_listing)} WHERE framework = :framework

-- in_one_state
-- Of one framework in one state.
FROM workflow_instances {index(idx_instances_listing_status)} WHERE framework = :framework AND status = :status

-- of_one_workflow
-- Of one framework and one workflow in one state.
FROM workflow_instances {index(idx_instances_listing_workflow)}
 WHERE framework = :framework AND workflow_name = :workflow AND status = :status

-- started_after
-- Later than a time.
AND started_at > :started_after

-- started_before
-- Earlier than a time.
AND started_at < :started_before

-- after
-- Beyond the last row of the page before.
AND (started_at, {ordinal(instance_id)}) < (:last_at, :last_id)

-- after [sqlite]
-- Differs because times are text here, and what the rest of the family writes may lack the fraction.
AND (started_at, instance_id) < (:last_text, :last_id)

-- after [mysql]
-- Differs because MySQL finds no index range in a comparison of rows.
AND (started_at < :last_at OR started_at = :last_at AND instance_id < :last_id)

-- workflow_name
-- With a text in the workflow's name.
AND {contains(workflow_name, :workflow_name)}

-- instance_id
-- With a text in the id.
AND {contains(instance_id, :instance_id)}

-- input
-- With a value at a path of the input, or with an input that only Python reads for certain. The condition is a Driver's.
AND (:condition OR {json_doubt(input_data, path)})

-- order
-- Ids are ordered by their code points.
ORDER BY started_at DESC, {ordinal(instance_id)} DESC LIMIT :limit

-- count
-- How many there are of what a page is of, up to a limit, is this, the same conditions, and `counted`.
SELECT count(*) FROM (SELECT 1

-- counted
-- No more than this many.
LIMIT :limit) found

-- workflow
-- The next workflow that own instances are of: a step along an index, not a look at every row.
SELECT workflow_name FROM workflow_instances {index(idx_instances_listing_workflow)}
 WHERE framework = 'perdure' AND workflow_name > :workflow ORDER BY workflow_name LIMIT 1

-- framework
-- The next framework that has instances: a step along an index, not a look at every row.
SELECT framework FROM workflow_instances WHERE framework > :framework ORDER BY framework LIMIT 1
