-- existing -> table_name, column_name, data_type
-- Return the existing tables and views that have one of these names, with their columns.
SELECT m.name, c.name, c.type FROM sqlite_master m, pragma_table_info(m.name) c
 WHERE m.type IN ('table', 'view') AND lower(m.name) IN :names

-- existing [postgresql]
-- Differs because each database has its own catalog; here, only the tables of one schema.
SELECT t.relname, a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_class t
  JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE t.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = :schema)
   AND t.relkind IN ('r', 'p', 'v', 'm', 'f') AND t.relname IN :names

-- existing [mysql]
-- Differs because each database has its own catalog.
SELECT table_name, column_name, data_type FROM information_schema.columns
 WHERE table_schema = DATABASE() AND table_name IN :names

-- schemas -> schema_name
-- Return the schema that has our tables: our own, or the first of the search path, or `public`.
SELECT n.nspname FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace
 WHERE t.relname = :anchor AND t.relkind IN ('r', 'p')
   AND (n.nspname IN (:schema, 'public') OR n.nspname = ANY (current_schemas(false)))
   AND (SELECT count(*) FROM pg_attribute a
         WHERE a.attrelid = t.oid AND NOT a.attisdropped AND a.attname IN :columns) = :count
 ORDER BY n.nspname <> :schema, array_position(current_schemas(false), n.nspname) LIMIT 1

-- rights -> role, database, may_create, may_use
-- Return the role and the database, and whether the role may create schemas, and use this one.
SELECT current_user::text, current_database()::text, has_database_privilege(current_database(), 'CREATE'),
       (SELECT has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE')
          FROM pg_namespace WHERE nspname = :schema)

-- create_schema
-- Create a schema.
CREATE SCHEMA {schema}

-- recorded -> version
-- Return the versions that a ledger records as applied.
SELECT version FROM {ledger}

-- create_ledger
-- Create a ledger.
CREATE TABLE IF NOT EXISTS {ledger} (version VARCHAR(128) PRIMARY KEY)

-- record
-- Record a version as applied.
INSERT INTO {ledger} (version) VALUES (:version)

-- drop
-- Drop a table, for tests.
DROP TABLE IF EXISTS {table}

-- begin
-- Begin the transaction of a migration, which no other process can begin meanwhile.
BEGIN IMMEDIATE

-- begin [postgresql]
-- Differs because `lock` keeps the others away. A stricter isolation would not see what was committed during the wait.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = :wait

-- lock -> locked
-- Wait for the lock of migrations until the commit: a session's lock would not outlive a pooler's transaction.
SELECT pg_advisory_xact_lock({key})

-- use_schema
-- Let plain names stand for the tables of one schema, until the commit: the files name no schema.
SET LOCAL search_path = {schema}

-- commit
-- Commit the migration.
COMMIT

-- roll_back
-- Undo the migration.
ROLLBACK

-- limit_waits
-- Limit the wait for a table in use, which lasts up to a year by default.
SET SESSION lock_wait_timeout = {seconds}

-- take_lock -> taken
-- Wait for the lock of migrations, which is Edda's.
SELECT GET_LOCK('edda_migration', {seconds})

-- release_lock -> released
-- Release the lock of migrations.
SELECT RELEASE_LOCK('edda_migration')
