-- migrate:up

-- Edda created tables of another shape before it had files like these, and keeps using them. They are rejected here,
-- before anything is changed, by a column they lack.
SELECT data_type FROM workflow_history_archive WHERE 1 = 0;

-- 64-bit ids, fractional seconds, 16 MiB instead of 64 KiB, and text that is compared exactly, so that Pay:1 and pay:1
-- differ. Every statement leaves the same result when it is run again: a start that finds this file half applied runs
-- it from the top.

-- TIMESTAMP turns into DATETIME in the session's zone: in any other than UTC the values would shift.
SET time_zone = '+00:00';

-- Until now a foreign key matched Pay:1 and pay:1. The reference takes the spelling of the row it refers to, because
-- the key could not be added again otherwise. Times that MySQL would update by itself are set to their own values.
UPDATE workflow_instances AS child
JOIN workflow_instances AS parent ON parent.instance_id = child.continued_from
SET child.continued_from = parent.instance_id, child.updated_at = child.updated_at
WHERE CAST(child.continued_from AS BINARY) <> CAST(parent.instance_id AS BINARY);
UPDATE workflow_instances AS child
JOIN workflow_definitions AS parent ON parent.workflow_name = child.workflow_name
    AND parent.source_hash = child.source_hash
SET child.workflow_name = parent.workflow_name,
    child.source_hash = parent.source_hash,
    child.updated_at = child.updated_at
WHERE CAST(child.workflow_name AS BINARY) <> CAST(parent.workflow_name AS BINARY)
    OR CAST(child.source_hash AS BINARY) <> CAST(parent.source_hash AS BINARY);
UPDATE workflow_history AS child
JOIN workflow_instances AS parent ON parent.instance_id = child.instance_id
SET child.instance_id = parent.instance_id
WHERE CAST(child.instance_id AS BINARY) <> CAST(parent.instance_id AS BINARY);
UPDATE workflow_history_archive AS child
JOIN workflow_instances AS parent ON parent.instance_id = child.instance_id
SET child.instance_id = parent.instance_id, child.created_at = child.created_at
WHERE CAST(child.instance_id AS BINARY) <> CAST(parent.instance_id AS BINARY);
UPDATE workflow_compensations AS child
JOIN workflow_instances AS parent ON parent.instance_id = child.instance_id
SET child.instance_id = parent.instance_id
WHERE CAST(child.instance_id AS BINARY) <> CAST(parent.instance_id AS BINARY);
UPDATE workflow_timer_subscriptions AS child
JOIN workflow_instances AS parent ON parent.instance_id = child.instance_id
SET child.instance_id = parent.instance_id, child.expires_at = child.expires_at
WHERE CAST(child.instance_id AS BINARY) <> CAST(parent.instance_id AS BINARY);
UPDATE workflow_group_memberships AS child
JOIN workflow_instances AS parent ON parent.instance_id = child.instance_id
SET child.instance_id = parent.instance_id
WHERE CAST(child.instance_id AS BINARY) <> CAST(parent.instance_id AS BINARY);
UPDATE channel_subscriptions AS child
JOIN workflow_instances AS parent ON parent.instance_id = child.instance_id
SET child.instance_id = parent.instance_id
WHERE CAST(child.instance_id AS BINARY) <> CAST(parent.instance_id AS BINARY);
UPDATE channel_delivery_cursors AS child
JOIN workflow_instances AS parent ON parent.instance_id = child.instance_id
SET child.instance_id = parent.instance_id, child.updated_at = child.updated_at
WHERE CAST(child.instance_id AS BINARY) <> CAST(parent.instance_id AS BINARY);
UPDATE channel_message_claims AS child
JOIN channel_messages AS parent ON parent.message_id = child.message_id
SET child.message_id = parent.message_id
WHERE CAST(child.message_id AS BINARY) <> CAST(parent.message_id AS BINARY);
UPDATE channel_message_claims AS child
JOIN workflow_instances AS parent ON parent.instance_id = child.instance_id
SET child.instance_id = parent.instance_id
WHERE CAST(child.instance_id AS BINARY) <> CAST(parent.instance_id AS BINARY);

-- The collation of a column in a foreign key can't be changed, so the keys are dropped first. Their names are looked
-- up: MySQL generated them (MariaDB since 12.1 in another way), and after a crash some are dropped already.
SET @statement = (
    SELECT COALESCE(
        CONCAT('ALTER TABLE ', MIN(table_name), GROUP_CONCAT(' DROP FOREIGN KEY `', constraint_name, '`')), 'DO 0'
    )
    FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND table_name = 'workflow_instances'
    AND referenced_table_name IN ('workflow_definitions', 'workflow_instances', 'channel_messages')
);
PREPARE unlink FROM @statement;
EXECUTE unlink;
SET @statement = (
    SELECT COALESCE(
        CONCAT('ALTER TABLE ', MIN(table_name), GROUP_CONCAT(' DROP FOREIGN KEY `', constraint_name, '`')), 'DO 0'
    )
    FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND table_name = 'workflow_history'
    AND referenced_table_name IN ('workflow_definitions', 'workflow_instances', 'channel_messages')
);
PREPARE unlink FROM @statement;
EXECUTE unlink;
SET @statement = (
    SELECT COALESCE(
        CONCAT('ALTER TABLE ', MIN(table_name), GROUP_CONCAT(' DROP FOREIGN KEY `', constraint_name, '`')), 'DO 0'
    )
    FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND table_name = 'workflow_history_archive'
    AND referenced_table_name IN ('workflow_definitions', 'workflow_instances', 'channel_messages')
);
PREPARE unlink FROM @statement;
EXECUTE unlink;
SET @statement = (
    SELECT COALESCE(
        CONCAT('ALTER TABLE ', MIN(table_name), GROUP_CONCAT(' DROP FOREIGN KEY `', constraint_name, '`')), 'DO 0'
    )
    FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND table_name = 'workflow_compensations'
    AND referenced_table_name IN ('workflow_definitions', 'workflow_instances', 'channel_messages')
);
PREPARE unlink FROM @statement;
EXECUTE unlink;
SET @statement = (
    SELECT COALESCE(
        CONCAT('ALTER TABLE ', MIN(table_name), GROUP_CONCAT(' DROP FOREIGN KEY `', constraint_name, '`')), 'DO 0'
    )
    FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND table_name = 'workflow_timer_subscriptions'
    AND referenced_table_name IN ('workflow_definitions', 'workflow_instances', 'channel_messages')
);
PREPARE unlink FROM @statement;
EXECUTE unlink;
SET @statement = (
    SELECT COALESCE(
        CONCAT('ALTER TABLE ', MIN(table_name), GROUP_CONCAT(' DROP FOREIGN KEY `', constraint_name, '`')), 'DO 0'
    )
    FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND table_name = 'workflow_group_memberships'
    AND referenced_table_name IN ('workflow_definitions', 'workflow_instances', 'channel_messages')
);
PREPARE unlink FROM @statement;
EXECUTE unlink;
SET @statement = (
    SELECT COALESCE(
        CONCAT('ALTER TABLE ', MIN(table_name), GROUP_CONCAT(' DROP FOREIGN KEY `', constraint_name, '`')), 'DO 0'
    )
    FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND table_name = 'channel_subscriptions'
    AND referenced_table_name IN ('workflow_definitions', 'workflow_instances', 'channel_messages')
);
PREPARE unlink FROM @statement;
EXECUTE unlink;
SET @statement = (
    SELECT COALESCE(
        CONCAT('ALTER TABLE ', MIN(table_name), GROUP_CONCAT(' DROP FOREIGN KEY `', constraint_name, '`')), 'DO 0'
    )
    FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND table_name = 'channel_delivery_cursors'
    AND referenced_table_name IN ('workflow_definitions', 'workflow_instances', 'channel_messages')
);
PREPARE unlink FROM @statement;
EXECUTE unlink;
SET @statement = (
    SELECT COALESCE(
        CONCAT('ALTER TABLE ', MIN(table_name), GROUP_CONCAT(' DROP FOREIGN KEY `', constraint_name, '`')), 'DO 0'
    )
    FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND table_name = 'channel_message_claims'
    AND referenced_table_name IN ('workflow_definitions', 'workflow_instances', 'channel_messages')
);
PREPARE unlink FROM @statement;
EXECUTE unlink;
DEALLOCATE PREPARE unlink;

ALTER TABLE schema_version
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN applied_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);
ALTER TABLE workflow_definitions
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);
ALTER TABLE workflow_instances
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN started_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    MODIFY COLUMN updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
    MODIFY COLUMN locked_at DATETIME(6) NULL,
    MODIFY COLUMN lock_expires_at DATETIME(6) NULL;
ALTER TABLE workflow_history
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN id BIGINT NOT NULL AUTO_INCREMENT,
    MODIFY COLUMN created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);
ALTER TABLE workflow_history_archive
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN id BIGINT NOT NULL AUTO_INCREMENT,
    MODIFY COLUMN created_at DATETIME(6) NOT NULL,
    MODIFY COLUMN archived_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);
ALTER TABLE workflow_compensations
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN id BIGINT NOT NULL AUTO_INCREMENT,
    MODIFY COLUMN created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);
ALTER TABLE workflow_timer_subscriptions
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN id BIGINT NOT NULL AUTO_INCREMENT,
    MODIFY COLUMN expires_at DATETIME(6) NOT NULL,
    MODIFY COLUMN created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);
ALTER TABLE workflow_group_memberships
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN id BIGINT NOT NULL AUTO_INCREMENT,
    MODIFY COLUMN joined_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);
ALTER TABLE outbox_events
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    MODIFY COLUMN published_at DATETIME(6) NULL;
-- A wider text in one statement with CONVERT is ignored by MySQL, though not by MariaDB.
ALTER TABLE outbox_events MODIFY COLUMN last_error MEDIUMTEXT NULL;
ALTER TABLE channel_messages
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN id BIGINT NOT NULL AUTO_INCREMENT,
    MODIFY COLUMN published_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);
ALTER TABLE channel_messages MODIFY COLUMN metadata MEDIUMTEXT NULL;
ALTER TABLE channel_subscriptions
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN id BIGINT NOT NULL AUTO_INCREMENT,
    MODIFY COLUMN cursor_message_id BIGINT NULL,
    MODIFY COLUMN timeout_at DATETIME(6) NULL,
    MODIFY COLUMN subscribed_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);
ALTER TABLE channel_delivery_cursors
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN id BIGINT NOT NULL AUTO_INCREMENT,
    MODIFY COLUMN last_delivered_id BIGINT NOT NULL,
    MODIFY COLUMN updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6);
ALTER TABLE channel_message_claims
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN claimed_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);
ALTER TABLE system_locks
    CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    MODIFY COLUMN locked_at DATETIME(6) NULL,
    MODIFY COLUMN lock_expires_at DATETIME(6) NULL;

ALTER TABLE workflow_instances ADD CONSTRAINT workflow_instances_ibfk_1
    FOREIGN KEY (continued_from) REFERENCES workflow_instances (instance_id);
ALTER TABLE workflow_instances ADD CONSTRAINT workflow_instances_ibfk_2
    FOREIGN KEY (workflow_name, source_hash) REFERENCES workflow_definitions (workflow_name, source_hash);
ALTER TABLE workflow_history ADD CONSTRAINT workflow_history_ibfk_1
    FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE;
ALTER TABLE workflow_history_archive ADD CONSTRAINT workflow_history_archive_ibfk_1
    FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE;
ALTER TABLE workflow_compensations ADD CONSTRAINT workflow_compensations_ibfk_1
    FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE;
ALTER TABLE workflow_timer_subscriptions ADD CONSTRAINT workflow_timer_subscriptions_ibfk_1
    FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE;
ALTER TABLE workflow_group_memberships ADD CONSTRAINT workflow_group_memberships_ibfk_1
    FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE;
ALTER TABLE channel_subscriptions ADD CONSTRAINT channel_subscriptions_ibfk_1
    FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE;
ALTER TABLE channel_delivery_cursors ADD CONSTRAINT channel_delivery_cursors_ibfk_1
    FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE;
ALTER TABLE channel_message_claims ADD CONSTRAINT channel_message_claims_ibfk_1
    FOREIGN KEY (message_id) REFERENCES channel_messages (message_id) ON DELETE CASCADE;
ALTER TABLE channel_message_claims ADD CONSTRAINT channel_message_claims_ibfk_2
    FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE;

-- migrate:down

-- The wider types work with the earlier schema as well; narrowing them could lose rows.
SELECT 1;
