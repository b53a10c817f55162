-- notify -> notified
-- Notify listeners that there may be work, if and when the transaction commits. PostgreSQL only: the notifiers of the
-- other databases never use it.
SELECT pg_notify(:kind, :payload)
