"""Reading a SQLite file with a connection of its own that cannot write."""

import sqlite3
from contextlib import closing
from typing import Any
from urllib.parse import quote

Rows = tuple[list[str], list[tuple[Any, ...]]]


def fetch_rows(path: str, statement: str, limit: int) -> Rows:
    """Return the names of the columns and at most so many rows; the file must exist."""
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=5)) as connection:
        connection.execute("PRAGMA query_only = 1")
        cursor = connection.execute(statement)
        return [each[0] for each in cursor.description or ()], cursor.fetchmany(limit)
