-- notify
-- Tell listeners that there may be work; it is heard if and when the transaction commits. PostgreSQL only: the other
-- databases' notifiers never ask for it.
SELECT pg_notify(:kind, :payload)
