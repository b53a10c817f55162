"""Connect to SQLite: one writing thread, queued with other processes, and reads beside it."""

from perdure.database.backends.sqlite.backend import SQLiteBackend

__all__ = ["SQLiteBackend"]
