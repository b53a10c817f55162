-- migrate:up

-- What people did in the dashboard: who, when, what, why, and the outcome. The rows outlive the runs they are about.
CREATE TABLE IF NOT EXISTS perdure_audit (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    acted_at DATETIME(6) NOT NULL,
    actor VARCHAR(255) NOT NULL,
    action VARCHAR(255) NOT NULL,
    target VARCHAR(255) NOT NULL,
    query MEDIUMTEXT NOT NULL,
    reason MEDIUMTEXT NOT NULL,
    outcome MEDIUMTEXT NOT NULL
) DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE INDEX idx_perdure_audit_acted ON perdure_audit (acted_at, id);

-- The runs that an entry of the audit is about.
CREATE TABLE IF NOT EXISTS perdure_audit_runs (
    instance_id VARCHAR(255) NOT NULL,
    audit_id BIGINT NOT NULL,
    PRIMARY KEY (instance_id, audit_id),
    FOREIGN KEY (audit_id) REFERENCES perdure_audit (id) ON DELETE CASCADE
) DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Searches for runs that people saved under a name.
CREATE TABLE IF NOT EXISTS perdure_views (
    name VARCHAR(255) NOT NULL PRIMARY KEY,
    query MEDIUMTEXT NOT NULL,
    created_by VARCHAR(255) NOT NULL,
    created_at DATETIME(6) NOT NULL
) DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- migrate:down

DROP TABLE IF EXISTS perdure_views;
DROP TABLE IF EXISTS perdure_audit_runs;
DROP TABLE IF EXISTS perdure_audit;
