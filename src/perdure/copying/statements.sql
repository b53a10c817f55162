-- columns -> table_name, column_name, data_type, is_generated, key_position
-- Return the columns of tables, in their order, with their positions in the primary key.
SELECT m.name, c.name, c.type, c.hidden > 1, c.pk FROM sqlite_master m, pragma_table_xinfo(m.name) c
 WHERE m.type = 'table' AND m.name IN {names} ORDER BY m.name, c.cid

-- columns [postgresql]
-- Differs because each database has its own catalog.
SELECT t.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attgenerated::text <> '',
       COALESCE(array_position(i.indkey::int2[], a.attnum) + 1, 0)
  FROM pg_class t
  JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_index i ON i.indrelid = t.oid AND i.indisprimary
 WHERE t.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = {schema}) AND t.relkind = 'r'
   AND t.relname IN {names}
 ORDER BY t.relname, a.attnum

-- columns [mysql]
-- Differs because each database has its own catalog.
SELECT c.table_name, c.column_name, c.data_type, COALESCE(c.generation_expression, '') <> '',
       COALESCE(k.ordinal_position, 0)
  FROM information_schema.columns c
  LEFT JOIN information_schema.key_column_usage k
    ON k.table_schema = c.table_schema AND k.table_name = c.table_name AND k.column_name = c.column_name
   AND k.constraint_name = 'PRIMARY'
 WHERE c.table_schema = DATABASE() AND c.table_name IN {names}
 ORDER BY c.table_name, c.ordinal_position

-- references -> table_name, column_name, referenced_table
-- Return the columns of foreign keys.
SELECT m.name, f."from", f."table" FROM sqlite_master m, pragma_foreign_key_list(m.name) f
 WHERE m.type = 'table' AND m.name IN {names}

-- references [postgresql]
-- Differs because each database has its own catalog.
SELECT t.relname::text, a.attname::text, r.relname::text
  FROM pg_constraint c
  JOIN pg_class t ON t.oid = c.conrelid
  JOIN pg_class r ON r.oid = c.confrelid
  JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = ANY (c.conkey)
 WHERE c.contype = 'f' AND t.relname IN {names}
   AND t.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = {schema})

-- references [mysql]
-- Differs because each database has its own catalog.
SELECT table_name, column_name, referenced_table_name FROM information_schema.key_column_usage
 WHERE table_schema = DATABASE() AND referenced_table_name IS NOT NULL AND table_name IN {names}

-- counter -> last
-- Return the last id that a table generated; no row if it generates none or has not generated any.
SELECT seq FROM sqlite_sequence WHERE name = {name}

-- counter [postgresql]
-- Differs because a sequence generates the ids. NULL where there is none.
SELECT CASE WHEN s.id IS NULL THEN NULL ELSE COALESCE(pg_sequence_last_value(s.id), 0) END
  FROM (SELECT pg_get_serial_sequence({qualified}, {column})::regclass AS id) s

-- counter [mysql]
-- Differs because only this statement never returns an outdated counter; it is a part of the text.
SHOW CREATE TABLE {table}

-- set_counter
-- Let a table generate ids after this one.
DELETE FROM sqlite_sequence WHERE name = {name};
INSERT INTO sqlite_sequence (name, seq) VALUES ({name}, {last})

-- set_counter [postgresql]
-- Differs because a sequence generates the ids.
SELECT setval(pg_get_serial_sequence({qualified}, {column})::regclass, {last})

-- set_counter [mysql]
-- Differs because the counter belongs to the table.
ALTER TABLE {table} AUTO_INCREMENT = {following}

-- identity -> identity
-- Return what distinguishes this database from any other of its kind.
SELECT file FROM pragma_database_list WHERE name = 'main'

-- identity [postgresql]
-- Differs because a server has no file; no two servers start in the same microsecond.
SELECT concat_ws('/', pg_postmaster_start_time(), current_setting('port'), current_database(), {schema})

-- identity [mysql]
-- Differs because a server has no file.
SELECT CONCAT_WS('/', @@hostname, @@port, @@datadir, DATABASE())

-- foreign_leases -> locked_by, runs
-- Return the workers of other frameworks that hold leases.
SELECT locked_by, COUNT(*) FROM {table}
 WHERE framework <> 'perdure' AND locked_by IS NOT NULL AND lock_expires_at > {now}
 GROUP BY locked_by ORDER BY locked_by

-- count -> row_count
-- Count the rows of a table.
SELECT COUNT(*) FROM {table}

-- any_row -> found
-- Return a row if the table has any.
SELECT 1 FROM {table} LIMIT 1

-- sizes -> key_columns_and_size
-- Return the keys of the next rows, and how many bytes each row has.
SELECT {key}, {size} FROM {table} WHERE {after} ORDER BY {key} LIMIT {limit}

-- rows -> selected_columns
-- Return the next rows.
SELECT {columns} FROM {table} WHERE {after} ORDER BY {key} LIMIT {limit}

-- byte_length
-- Not a statement, but a part of `sizes`: how many bytes a value has.
COALESCE(LENGTH(CAST({column} AS BLOB)), 0)

-- byte_length [postgresql]
-- Differs because each database has its own function.
COALESCE(OCTET_LENGTH({column}), 0)

-- byte_length [mysql]
-- Differs because each database has its own function.
COALESCE(OCTET_LENGTH({column}), 0)

-- insert
-- Insert rows.
INSERT INTO {table} ({columns}) VALUES {values}

-- set
-- Set columns of the row with a key.
UPDATE {table} SET {assignments} WHERE {same}

-- forget
-- Remove the references of rows to others of the same table, so that they can be deleted in any order.
UPDATE {table} SET {column} = NULL WHERE {column} IS NOT NULL

-- clear
-- Delete all rows of a table.
DELETE FROM {table}

-- create_marker
-- Create the table with the one row that says what a copy does with this database.
CREATE TABLE IF NOT EXISTS {table} (
    is_only INTEGER NOT NULL PRIMARY KEY,
    id VARCHAR(64) NOT NULL,
    role VARCHAR(16) NOT NULL,
    state VARCHAR(16) NOT NULL,
    place VARCHAR(1000) NOT NULL,
    since VARCHAR(40) NOT NULL,
    message VARCHAR(128) NOT NULL,
    is_written INTEGER NOT NULL
)

-- create_marker [mysql]
-- Differs because the database may have another default, and the row takes part in transactions.
CREATE TABLE IF NOT EXISTS {table} (
    is_only INTEGER NOT NULL PRIMARY KEY,
    id VARCHAR(64) NOT NULL,
    role VARCHAR(16) NOT NULL,
    state VARCHAR(16) NOT NULL,
    place VARCHAR(1000) NOT NULL,
    since VARCHAR(40) NOT NULL,
    message VARCHAR(128) NOT NULL,
    is_written INTEGER NOT NULL
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin

-- create_steps
-- Create the table of the steps of a copy, with the key of the last row that each has copied.
CREATE TABLE IF NOT EXISTS {table} (
    step VARCHAR(128) NOT NULL PRIMARY KEY,
    last_key TEXT,
    copied BIGINT NOT NULL,
    is_done INTEGER NOT NULL
)

-- create_steps [mysql]
-- Differs because the database may have another default, and the rows take part in transactions.
CREATE TABLE IF NOT EXISTS {table} (
    step VARCHAR(128) NOT NULL PRIMARY KEY,
    last_key TEXT,
    copied BIGINT NOT NULL,
    is_done INTEGER NOT NULL
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin

-- drop_table
-- Drop a table of the copy.
DROP TABLE IF EXISTS {table}

-- marker -> id, role, state, place, since
-- Return the marker.
SELECT id, role, state, place, since FROM {table}

-- mark
-- Add the marker.
INSERT INTO {table} (is_only, id, role, state, place, since, message, is_written)
VALUES (1, :id, :role, :state, :place, :since, :message, 0)

-- mark_moved
-- Say that the copy of the source is complete.
UPDATE {table} SET state = 'moved', since = :since, message = :message WHERE id = :id

-- unmark
-- Remove the marker, which ends the guard.
DELETE FROM {table}

-- open_guard
-- Let this transaction write: no other transaction sees this, because it is undone before the commit.
UPDATE {table} SET is_written = 1 WHERE id = :id AND role = 'target' AND state = 'copying'

-- close_guard
-- Undo `open_guard`.
UPDATE {table} SET is_written = 0 WHERE id = :id

-- steps -> step, last_key, copied, is_done
-- Return the steps.
SELECT step, last_key, copied, is_done FROM {table}

-- add_step
-- Record a step that has not begun.
INSERT INTO {table} (step, last_key, copied, is_done) VALUES (:step, NULL, 0, 0)

-- advance_step
-- Record how far a step is; no row if another process has advanced it.
UPDATE {table} SET last_key = :last_key, copied = :copied, is_done = :is_done
 WHERE step = :step AND copied = :before AND is_done = 0

-- triggers -> name
-- Return the triggers of the guard.
SELECT name FROM sqlite_master WHERE type = 'trigger' AND name >= 'perdure_guard_' AND name < 'perdure_guard`'

-- triggers [postgresql]
-- Differs because a trigger belongs to its table.
SELECT g.tgname::text FROM pg_trigger g JOIN pg_class t ON t.oid = g.tgrelid
 WHERE starts_with(g.tgname::text, 'perdure_guard_')
   AND t.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = {schema})

-- triggers [mysql]
-- Differs because each database has its own catalog.
SELECT trigger_name FROM information_schema.triggers
 WHERE trigger_schema = DATABASE() AND LEFT(trigger_name, 14) = 'perdure_guard_'

-- create_guard
-- Reject every write to a table, unless this transaction has opened the guard. RAISE takes no expression before SQLite
-- 3.47, so the text is a part of the trigger.
CREATE TRIGGER perdure_guard_{name}_insert BEFORE INSERT ON {table}
  WHEN (SELECT is_written FROM {marker}) = 0 BEGIN SELECT RAISE(ABORT, {message}); END;
CREATE TRIGGER perdure_guard_{name}_update BEFORE UPDATE ON {table}
  WHEN (SELECT is_written FROM {marker}) = 0 BEGIN SELECT RAISE(ABORT, {message}); END;
CREATE TRIGGER perdure_guard_{name}_delete BEFORE DELETE ON {table}
  WHEN (SELECT is_written FROM {marker}) = 0 BEGIN SELECT RAISE(ABORT, {message}); END

-- create_guard [postgresql]
-- Differs because one function serves all triggers.
CREATE TRIGGER perdure_guard_{name} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}
  FOR EACH STATEMENT EXECUTE FUNCTION {function}()

-- create_guard [mysql]
-- Differs because the text can be read from the marker, and has to: a trigger can't be replaced in one step. The lock
-- lets a transaction that began before the copy read the marker.
CREATE TRIGGER perdure_guard_{name}_insert BEFORE INSERT ON {table} FOR EACH ROW
  BEGIN DECLARE found VARCHAR(128); SET found = (SELECT message FROM {marker} WHERE is_written = 0
  LOCK IN SHARE MODE); IF found IS NOT NULL THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = found; END IF; END;
CREATE TRIGGER perdure_guard_{name}_update BEFORE UPDATE ON {table} FOR EACH ROW
  BEGIN DECLARE found VARCHAR(128); SET found = (SELECT message FROM {marker} WHERE is_written = 0
  LOCK IN SHARE MODE); IF found IS NOT NULL THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = found; END IF; END;
CREATE TRIGGER perdure_guard_{name}_delete BEFORE DELETE ON {table} FOR EACH ROW
  BEGIN DECLARE found VARCHAR(128); SET found = (SELECT message FROM {marker} WHERE is_written = 0
  LOCK IN SHARE MODE); IF found IS NOT NULL THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = found; END IF; END

-- create_function
-- Create what all guards of PostgreSQL call, with the rights of its owner: a role of workers may not read the marker.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $guard$
BEGIN IF NOT EXISTS (SELECT 1 FROM {marker} WHERE is_written = 1)
THEN RAISE EXCEPTION USING MESSAGE = {message}; END IF; RETURN NULL; END $guard$

-- drop_function
-- Drop what all guards of PostgreSQL call.
DROP FUNCTION IF EXISTS {function}()

-- drop_guard
-- Let a table be written again.
DROP TRIGGER IF EXISTS perdure_guard_{name}_insert;
DROP TRIGGER IF EXISTS perdure_guard_{name}_update;
DROP TRIGGER IF EXISTS perdure_guard_{name}_delete

-- drop_guard [postgresql]
-- Differs because there is one trigger, and it belongs to its table.
DROP TRIGGER IF EXISTS perdure_guard_{name} ON {table}
