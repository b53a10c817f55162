"""Connect to PostgreSQL through asyncpg.

Behind a pooler in transaction mode two statements may run in different sessions: nothing is set outside a
transaction, and statements have no names.
"""

from perdure.database.backends.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]
