-- migrate:up

-- What people did in the dashboard: who, when, what, why, and the outcome. The rows outlive the runs they are about.
CREATE TABLE IF NOT EXISTS perdure_audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    acted_at TEXT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    query TEXT NOT NULL,
    reason TEXT NOT NULL,
    outcome TEXT NOT NULL
);
CREATE INDEX idx_perdure_audit_acted ON perdure_audit (acted_at, id);

-- The runs that an entry of the audit is about.
CREATE TABLE IF NOT EXISTS perdure_audit_runs (
    instance_id TEXT NOT NULL,
    audit_id INTEGER NOT NULL,
    PRIMARY KEY (instance_id, audit_id),
    FOREIGN KEY (audit_id) REFERENCES perdure_audit (id) ON DELETE CASCADE
);
CREATE INDEX idx_perdure_audit_runs_entry ON perdure_audit_runs (audit_id);

-- Searches for runs that people saved under a name.
CREATE TABLE IF NOT EXISTS perdure_views (
    name TEXT NOT NULL PRIMARY KEY,
    query TEXT NOT NULL,
    created_by TEXT NOT NULL,
    created_at TEXT NOT NULL
);

-- migrate:down

DROP TABLE IF EXISTS perdure_views;
DROP TABLE IF EXISTS perdure_audit_runs;
DROP TABLE IF EXISTS perdure_audit;
