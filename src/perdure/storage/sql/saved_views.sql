-- add -> count
-- Save a search under a name that is not in use.
INSERT INTO perdure_views (name, query, created_by, created_at) VALUES (:name, :query, :created_by, {now})
{on_conflict_do_nothing(name)}

-- list -> name, query, created_by, created_at
-- Return all saved searches, by name; there are few.
SELECT name, query, created_by, {utc(created_at)} FROM perdure_views ORDER BY {ordinal(name)} LIMIT :limit

-- remove -> count
-- Remove a saved search.
DELETE FROM perdure_views WHERE name = :name
