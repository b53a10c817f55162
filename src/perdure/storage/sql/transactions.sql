-- savepoint
-- Set a savepoint inside the open transaction, for one item of a batch.
SAVEPOINT item

-- release
-- Keep what the item wrote.
RELEASE SAVEPOINT item

-- undo
-- Undo what the item wrote.
ROLLBACK TO SAVEPOINT item
