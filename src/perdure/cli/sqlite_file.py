"""Reading a SQLite file with a connection of its own that cannot write."""

import os
import sqlite3
import time
from contextlib import closing
from typing import Any
from urllib.parse import quote

from perdure.database.dialects import new_driver
from perdure.errors import ConfigurationError
from perdure.storage.stores import sqlite_path

Rows = tuple[list[str], list[tuple[Any, ...]]]


CHECK_EVERY = 10_000  # instructions of SQLite between two looks at the clock


def require_file(url: str) -> None:
    """Raise `ConfigurationError` if the URL is that of a SQLite file that does not exist."""
    if new_driver(url).name != "sqlite":
        return
    path = sqlite_path(url)
    if path != ":memory:" and os.path.isdir(os.path.dirname(path) or "."):  # SQLite has words of its own for the folder
        _require(path)


def _require(path: str) -> None:
    if not os.path.exists(path):
        raise ConfigurationError(
            f"the file {os.path.abspath(path)} does not exist: correct the path in the URL, or create the database "
            "with `perdure migrate up` or a worker"
        )


def fetch_rows(path: str, statement: str, limit: int, timeout: float = 30.0) -> Rows:
    """Return the names of the columns and at most so many rows. Raise `TimeoutError` after so many seconds."""
    _require(path)
    until = time.monotonic() + timeout
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=5)) as connection:
        connection.execute("PRAGMA query_only = 1")
        connection.set_progress_handler(lambda: time.monotonic() > until, CHECK_EVERY)
        try:
            cursor = connection.execute(statement)
            return [each[0] for each in cursor.description or ()], cursor.fetchmany(limit)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname == "SQLITE_INTERRUPT":
                raise TimeoutError from error
            raise
