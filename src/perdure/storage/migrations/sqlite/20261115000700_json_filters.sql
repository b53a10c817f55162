-- migrate:up

-- Only PostgreSQL needs a function to read a text that may not be JSON.
SELECT 1;

-- migrate:down

SELECT 1;
