-- migrate:up

-- Return a text as JSON, or NULL if it is not JSON, so that one such row does not fail a whole query. PostgreSQL 16
-- could check first (IS JSON), but jsonb rejects some valid JSON all the same. Not PARALLEL SAFE: the exception block
-- is a subtransaction, which no parallel query may begin before version 17.
CREATE OR REPLACE FUNCTION perdure_json(input TEXT) RETURNS JSONB LANGUAGE plpgsql IMMUTABLE STRICT AS '
BEGIN
    RETURN input::JSONB;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END';

-- migrate:down

DROP FUNCTION perdure_json(TEXT);
