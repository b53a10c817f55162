-- finished -> instance_id
-- Return own instances that ended long ago, locked for deletion. What a live run continues from is kept: it determines
-- the number of its generation.
SELECT instance_id FROM workflow_instances {index(idx_instances_finished)}
 WHERE framework = 'perdure' AND finished_at < {ago(:age_sec)}
   AND (SELECT n.instance_id FROM workflow_instances n {index(idx_instances_continued_from)}
         WHERE n.continued_from = workflow_instances.instance_id AND n.finished_at IS NULL LIMIT 1) IS NULL
 ORDER BY finished_at, {ordinal(instance_id)} LIMIT :limit {skip_locked}

-- ended -> instance_id, framework
-- Return those of these instances that have ended, of any framework, locked for deletion, with the same exception.
SELECT instance_id, framework FROM workflow_instances
 WHERE instance_id {any(:ids)} AND finished_at IS NOT NULL
   AND (SELECT n.instance_id FROM workflow_instances n {index(idx_instances_continued_from)}
         WHERE n.continued_from = workflow_instances.instance_id AND n.finished_at IS NULL LIMIT 1) IS NULL
 {skip_locked}

-- unlink
-- Remove references of later generations to those about to be deleted: the foreign key has no ON DELETE. They keep
-- their time, which MySQL would update.
UPDATE workflow_instances {index(idx_instances_continued_from)} SET continued_from = NULL, updated_at = updated_at
 WHERE continued_from {any(:ids)}

-- delete -> count
-- Remove instances; all their rows are removed by cascades.
DELETE {from_index(workflow_instances, PRIMARY, status)} WHERE instance_id {any(:ids)}
