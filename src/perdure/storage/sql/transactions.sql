-- savepoint
-- A mark inside the running transaction, for one item of a batch.
SAVEPOINT item

-- release
-- Keep what the item did.
RELEASE SAVEPOINT item

-- undo
-- Undo what the item did.
ROLLBACK TO SAVEPOINT item
