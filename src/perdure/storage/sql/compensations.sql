-- add -> id
-- Register a compensation of a step.
INSERT INTO workflow_compensations (instance_id, activity_id, activity_name, args, created_at)
VALUES (:instance_id, :activity_id, :activity_name, :args, COALESCE(:created_at, {now}))
{returning(id)}

-- newest_first -> id, instance_id, activity_id, activity_name, args, created_at
-- Return the compensations, last in, first out by id: times can be equal, or go back.
SELECT id, instance_id, activity_id, activity_name, args, created_at
  FROM workflow_compensations {index(idx_compensations_order)}
 WHERE instance_id = :instance_id ORDER BY id DESC LIMIT :limit
