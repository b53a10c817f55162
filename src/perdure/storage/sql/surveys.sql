-- leases -> instance_id, workflow_name, status, locked_by, locked_at, lock_expires_at
-- Return own instances that are leased, the lease that expires first before the others, after a position in that order.
SELECT instance_id, workflow_name, status, locked_by, {utc(locked_at)}, {utc(lock_expires_at)}
  FROM workflow_instances {index(idx_instances_lease)}
 WHERE framework = 'perdure' AND lock_expires_at >= :expires_at
   AND (lock_expires_at > :expires_at OR {ordinal(instance_id)} > :instance_id)
 ORDER BY lock_expires_at, {ordinal(instance_id)} LIMIT :limit

-- held -> lock_name, locked_by, locked_at, lock_expires_at
-- Return the system locks that have an owner, by name: there is one for each background task.
SELECT lock_name, locked_by, {utc(locked_at)}, {utc(lock_expires_at)} FROM system_locks
 WHERE locked_by IS NOT NULL ORDER BY {ordinal(lock_name)} LIMIT :limit

-- oldest -> instance_id
-- Return the own instance in a state that was started first.
SELECT instance_id FROM workflow_instances {index(idx_instances_listing_status)}
 WHERE framework = 'perdure' AND status = :status ORDER BY started_at, {ordinal(instance_id)} LIMIT 1

-- channel -> channel
-- Return the next channel: one index lookup.
SELECT channel FROM perdure_channels WHERE channel > :after ORDER BY channel LIMIT 1

-- channel_use -> messages, subscribers
-- Count the messages and the subscribers of a channel up to a number.
SELECT (SELECT count(*) FROM (SELECT 1 AS found FROM channel_messages {index(idx_channel_messages_order)}
                               WHERE channel = :channel LIMIT :most) m),
       (SELECT count(*) FROM (SELECT 1 AS found FROM channel_subscriptions {index(idx_subscriptions_waiting)}
                               WHERE channel = :channel LIMIT :most) s)

-- waiting -> instance_id, timeout_at
-- Return some of those that wait for a message of a channel, as the index has them: to sort them would read them all.
SELECT instance_id, {utc(timeout_at)} FROM perdure_waits {index(idx_perdure_waits_channel)}
 WHERE channel = :channel LIMIT :limit

-- group -> group_name
-- Return the next group: one index lookup, without reading every member.
SELECT group_name FROM workflow_group_memberships {index(idx_group_memberships_order)}
 WHERE group_name > :after ORDER BY group_name LIMIT 1

-- group_use -> members
-- Count the members of a group up to a number.
SELECT count(*) FROM (SELECT 1 AS found FROM workflow_group_memberships {index(idx_group_memberships_order)}
                       WHERE group_name = :group_name LIMIT :most) m

-- events -> event_id, event_type, event_source, status, retry_count, last_error, published_at, created_at
-- Return own events of the outbox in one state without their data, oldest first, after a position in that order.
SELECT event_id, event_type, event_source, status, retry_count, last_error, {utc(published_at)}, {utc(created_at)}
  FROM outbox_events {index(idx_outbox_status)}
 WHERE status = :status AND sequence IS NOT NULL
   AND created_at >= :created_at AND (created_at > :created_at OR {ordinal(event_id)} > :event_id)
 ORDER BY created_at, {ordinal(event_id)} LIMIT :limit

-- count_events -> number
-- Count own events of the outbox in one state up to a number.
SELECT count(*) FROM (SELECT 1 AS found FROM outbox_events {index(idx_outbox_status)}
                       WHERE status = :status AND sequence IS NOT NULL LIMIT :most) found
