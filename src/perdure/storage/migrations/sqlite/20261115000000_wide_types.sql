-- migrate:up

-- Edda created tables of another shape before it had files like these, and keeps using them. They are rejected here,
-- before anything is changed, by a column they lack.
SELECT data_type FROM workflow_history_archive WHERE 1 = 0;

-- Ids are 64-bit already. Times are text and are compared as text, which is correct only if all have one format:
-- YYYY-MM-DD HH:MM:SS.ffffff in UTC. Edda and Romancy wrote whole seconds, and formats with T, Z or an offset; these
-- are converted. What no date function understands is left as it is.
UPDATE schema_version
SET applied_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', applied_at) || '000', applied_at)
WHERE applied_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_definitions
SET created_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', created_at) || '000', created_at)
WHERE created_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_instances
SET started_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', started_at) || '000', started_at)
WHERE started_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_instances
SET updated_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', updated_at) || '000', updated_at)
WHERE updated_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_instances
SET locked_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', locked_at) || '000', locked_at)
WHERE locked_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_instances
SET lock_expires_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', lock_expires_at) || '000', lock_expires_at)
WHERE lock_expires_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_history
SET created_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', created_at) || '000', created_at)
WHERE created_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_history_archive
SET created_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', created_at) || '000', created_at)
WHERE created_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_history_archive
SET archived_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', archived_at) || '000', archived_at)
WHERE archived_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_compensations
SET created_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', created_at) || '000', created_at)
WHERE created_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_timer_subscriptions
SET expires_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', expires_at) || '000', expires_at)
WHERE expires_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_timer_subscriptions
SET created_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', created_at) || '000', created_at)
WHERE created_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE workflow_group_memberships
SET joined_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', joined_at) || '000', joined_at)
WHERE joined_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE outbox_events
SET created_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', created_at) || '000', created_at)
WHERE created_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE outbox_events
SET published_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', published_at) || '000', published_at)
WHERE published_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE channel_messages
SET published_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', published_at) || '000', published_at)
WHERE published_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE channel_subscriptions
SET timeout_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', timeout_at) || '000', timeout_at)
WHERE timeout_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE channel_subscriptions
SET subscribed_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', subscribed_at) || '000', subscribed_at)
WHERE subscribed_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE channel_delivery_cursors
SET updated_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', updated_at) || '000', updated_at)
WHERE updated_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE channel_message_claims
SET claimed_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', claimed_at) || '000', claimed_at)
WHERE claimed_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE system_locks
SET locked_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', locked_at) || '000', locked_at)
WHERE locked_at NOT GLOB '????-??-?? ??:??:??.??????';
UPDATE system_locks
SET lock_expires_at = COALESCE(strftime('%Y-%m-%d %H:%M:%f', lock_expires_at) || '000', lock_expires_at)
WHERE lock_expires_at NOT GLOB '????-??-?? ??:??:??.??????';

-- migrate:down

-- The wider types work with the earlier schema as well; narrowing them could lose rows.
SELECT 1;
