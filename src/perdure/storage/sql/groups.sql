-- join
-- Add a member; an existing one keeps its position.
INSERT INTO workflow_group_memberships (instance_id, group_name, joined_at) VALUES (:instance_id, :group_name, {now})
{on_conflict_do_nothing(instance_id, group_name)}

-- leave
-- Remove a member from one group.
DELETE FROM workflow_group_memberships WHERE instance_id = :instance_id AND group_name = :group_name

-- leave_all
-- Remove a member from every group.
DELETE FROM workflow_group_memberships WHERE instance_id = :instance_id

-- members -> instance_id
-- Return the members of a group, in the order of joining.
SELECT instance_id FROM workflow_group_memberships {index(idx_group_memberships_order)}
 WHERE group_name = :group_name ORDER BY id LIMIT :limit
