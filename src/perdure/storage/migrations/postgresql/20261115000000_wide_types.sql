-- migrate:up

-- Edda created tables of another shape before it had files like these, and keeps using them. They are rejected here,
-- before anything is changed, by a column they lack.
SELECT data_type FROM workflow_history_archive WHERE 1 = 0;

-- 64-bit ids, so that a busy database does not stop at 2^31 rows. SERIAL's sequence keeps its own 32-bit limit
-- unless it is widened too.
ALTER TABLE workflow_history
    ALTER COLUMN id TYPE BIGINT;
ALTER SEQUENCE workflow_history_id_seq AS BIGINT;
ALTER TABLE workflow_history_archive
    ALTER COLUMN id TYPE BIGINT;
ALTER SEQUENCE workflow_history_archive_id_seq AS BIGINT;
ALTER TABLE workflow_compensations
    ALTER COLUMN id TYPE BIGINT;
ALTER SEQUENCE workflow_compensations_id_seq AS BIGINT;
ALTER TABLE workflow_timer_subscriptions
    ALTER COLUMN id TYPE BIGINT;
ALTER SEQUENCE workflow_timer_subscriptions_id_seq AS BIGINT;
ALTER TABLE workflow_group_memberships
    ALTER COLUMN id TYPE BIGINT;
ALTER SEQUENCE workflow_group_memberships_id_seq AS BIGINT;
ALTER TABLE channel_messages
    ALTER COLUMN id TYPE BIGINT;
ALTER SEQUENCE channel_messages_id_seq AS BIGINT;
ALTER TABLE channel_subscriptions
    ALTER COLUMN id TYPE BIGINT,
    ALTER COLUMN cursor_message_id TYPE BIGINT;
ALTER SEQUENCE channel_subscriptions_id_seq AS BIGINT;
ALTER TABLE channel_delivery_cursors
    ALTER COLUMN id TYPE BIGINT,
    ALTER COLUMN last_delivered_id TYPE BIGINT;
ALTER SEQUENCE channel_delivery_cursors_id_seq AS BIGINT;

-- migrate:down

-- The wider types work with the earlier schema as well; narrowing them could lose rows.
SELECT 1;
