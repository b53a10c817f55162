-- select -> {instance}
-- Begin a page of instances, newest first; one of the next two, the requested conditions and `order` follow.
SELECT {instance}

-- select_bare -> {instance}
-- Begin a page without payloads, which may be large and which a list does not show.
SELECT instance_id, workflow_name, '{}', framework, status, NULL, current_activity_id, source_hash,
       owner_service, continued_from, locked_by, {utc(locked_at)}, lock_timeout_seconds, {utc(lock_expires_at)},
       lock_token, {utc(started_at)}, {utc(updated_at)}, headers

-- in_any_state
-- Select one framework, whose index has the rows in order. The index is named because MariaDB would read from the
-- newest on until a page is full, and any database may misjudge a state that is rare.
FROM workflow_instances {index(idx_instances_listing)} WHERE framework = :framework

-- in_one_state
-- Select one framework in one state.
FROM workflow_instances {index(idx_instances_listing_status)} WHERE framework = :framework AND status = :status

-- of_one_workflow
-- Select one framework and one workflow in one state.
FROM workflow_instances {index(idx_instances_listing_workflow)}
 WHERE framework = :framework AND workflow_name = :workflow AND status = :status

-- started_after
-- Select later than a time.
AND started_at > :started_after

-- started_before
-- Select earlier than a time.
AND started_at < :started_before

-- after
-- Select beyond the last row of the previous page.
AND (started_at, {ordinal(instance_id)}) < (:last_at, :last_id)

-- after [sqlite]
-- Differs because times are text here, and those that other frameworks write may lack the fraction.
AND (started_at, instance_id) < (:last_text, :last_id)

-- after [mysql]
-- Differs because MySQL finds no index range in a comparison of rows.
AND (started_at < :last_at OR started_at = :last_at AND instance_id < :last_id)

-- workflow_name
-- Select by a text in the workflow's name.
AND {contains(workflow_name, :workflow_name)}

-- instance_id
-- Select by a text in the id.
AND {contains(instance_id, :instance_id)}

-- input
-- Select a value at a path of the input, or an input that only Python reads reliably. The Driver renders the condition.
AND (:condition OR {json_doubt(input_data, path)})

-- order
-- Order ids by their code points.
ORDER BY started_at DESC, {ordinal(instance_id)} DESC LIMIT :limit

-- branch -> {instance}
-- Make a page one branch of a union, so that several are read at the same moment.
SELECT * FROM (
:page) branch

-- one -> found
-- Begin the rows of a count, which has no order; the same conditions and `up_to` follow.
SELECT 1 AS found

-- up_to
-- Limit the rows of a count, those of each state and those of a union.
LIMIT :limit

-- count -> number
-- Count rows: of one state, or of a union of several, which are read at the same moment.
SELECT count(*) FROM (
:rows) found

-- workflow -> workflow_name
-- Return the next workflow of own instances: one index lookup, without reading every row.
SELECT workflow_name FROM workflow_instances {index(idx_instances_listing_workflow)}
 WHERE framework = 'perdure' AND workflow_name > :workflow ORDER BY workflow_name LIMIT 1

-- framework -> framework
-- Return the next framework that has instances: one index lookup, without reading every row.
SELECT framework FROM workflow_instances WHERE framework > :framework ORDER BY framework LIMIT 1

-- ended -> instance_id, workflow_name, status, started_at, finished_at
-- Return own instances that have ended, the last one first, before a position in that order.
SELECT instance_id, workflow_name, status, {utc(started_at)}, {utc(finished_at)}
  FROM workflow_instances {index(idx_instances_finished)}
 WHERE framework = 'perdure' AND finished_at <= :at AND (finished_at < :at OR {ordinal(instance_id)} < :instance_id)
 ORDER BY finished_at DESC, {ordinal(instance_id)} DESC LIMIT :limit
