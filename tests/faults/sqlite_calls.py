"""Calls of SQLite's connections, which happen in the writer's thread, in a reader's, or in the loop itself."""

import sqlite3
import threading
from typing import Any

from tests.faults.calls import PATIENCE_SEC, Calls, Kind

_NAMES = {
    Kind.BEFORE: "SQLITE_FULL",
    Kind.CONFLICT: "SQLITE_BUSY",
    Kind.AFTER: "SQLITE_IOERR_FSYNC",
    Kind.HANG: "SQLITE_BUSY",
    Kind.LOSE: "SQLITE_IOERR_WRITE",
}
_MARKS = ("BEGIN", "SAVEPOINT", "RELEASE")


def watch_sqlite(backend: Any, calls: Calls) -> None:
    """Count the calls of every connection that the backend makes from now on."""
    connect = backend._connect

    def counted() -> Any:
        return _Connection(connect(), calls)

    backend._connect = backend._writer._connect = counted


class _Connection:
    """A connection, and what may go wrong with it."""

    def __init__(self, real: sqlite3.Connection, calls: Calls) -> None:
        self._real, self._calls = real, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, text: str, *arguments: Any) -> sqlite3.Cursor:
        return self._call(text, self._real.execute, arguments)

    def executemany(self, text: str, *arguments: Any) -> sqlite3.Cursor:
        return self._call(text, self._real.executemany, arguments)

    def _call(self, text: str, do: Any, arguments: tuple[Any, ...]) -> sqlite3.Cursor:
        calls, kind = self._calls, self._calls.come(text)
        in_loop = threading.current_thread() is threading.main_thread()
        match kind:
            case Kind.BEFORE | Kind.CONFLICT:
                raise _error(kind)
            case Kind.AFTER if text.startswith(_MARKS):  # done last, when nothing can fail any more
                raise _error(kind)
            case Kind.HANG if in_loop:
                raise _error(kind)
            case Kind.HANG:
                calls.give_up()
                calls.over.wait(PATIENCE_SEC)
            case Kind.CANCEL:
                calls.give_up()
            case Kind.LOSE:  # the database drops the transaction
                if self._real.in_transaction:
                    self._real.execute("ROLLBACK")
                raise _error(kind)
        cursor: sqlite3.Cursor = do(text, *arguments)
        if kind is Kind.AFTER:
            cursor.close()  # a statement that fails is over
            raise _error(kind)
        if calls.armed and calls.after_each is not None:
            calls.after_each()
        return cursor


def _error(kind: Kind) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorname = _NAMES[kind]
    return error
