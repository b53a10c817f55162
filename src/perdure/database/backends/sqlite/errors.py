"""Translate SQLite's errors."""

import sqlite3

from perdure.errors import DatabaseUnavailableError, SchemaError, StorageError


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection holds a lock that the statement needs."""
    return getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def translate(error: sqlite3.Error) -> StorageError:
    """Return SQLite's error as one of ours, chained."""
    name, text = getattr(error, "sqlite_errorname", ""), str(error)
    if text.startswith(("no such table", "no such column")) or "has no column" in text:
        own: StorageError = SchemaError(f"the schema is not up to date: {text}; call initialize(), or migrate")
    elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        own = DatabaseUnavailableError("another program kept the database locked for too long; nothing was written")
    elif name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_NOTADB")):
        own = DatabaseUnavailableError(f"SQLite cannot use the file: {text}; nothing was written")
    else:
        own = StorageError(f"SQLite rejected a statement: {text}")
    own.__cause__ = error
    return own
