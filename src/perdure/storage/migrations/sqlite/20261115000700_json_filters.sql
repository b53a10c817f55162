-- migrate:up

-- Only PostgreSQL needs a function of its own to read a text that may not be JSON.
SELECT 1;

-- migrate:down

SELECT 1;
