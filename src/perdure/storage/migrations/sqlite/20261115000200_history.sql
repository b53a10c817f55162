-- migrate:up

-- A history is read in order of id, page by page.
CREATE INDEX idx_history_order ON workflow_history (instance_id, id);

-- An archived event keeps its original id and time; events archived by Edda or Romancy have neither.
ALTER TABLE workflow_history_archive ADD COLUMN original_id INTEGER;
ALTER TABLE workflow_history_archive ADD COLUMN original_created_at TEXT;
CREATE INDEX idx_history_archive_order ON workflow_history_archive (instance_id, original_id, id);

-- Last in, first out is by id: times can be equal or go back.
CREATE INDEX idx_compensations_order ON workflow_compensations (instance_id, id);

-- migrate:down

DROP INDEX idx_compensations_order;
DROP INDEX idx_history_archive_order;
ALTER TABLE workflow_history_archive DROP COLUMN original_created_at;
ALTER TABLE workflow_history_archive DROP COLUMN original_id;
DROP INDEX idx_history_order;
