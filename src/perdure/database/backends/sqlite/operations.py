"""Run operations on a connection to SQLite, in whichever thread calls."""

import sqlite3
from types import NoneType
from typing import Any, TypeVar

from perdure.database.dialects.base import Part
from perdure.database.dialects.sqlite import SQLiteDriver
from perdure.database.operation import Operation, Work
from perdure.database.statements import Call
from perdure.errors import LimitError

T = TypeVar("T")

_PLAIN = {NoneType, str, int, float, bytes}  # types that need no binding, which is nearly every value


def run_operation(connection: sqlite3.Connection, driver: SQLiteDriver, work: Work[T]) -> T:
    """Run an operation in the open transaction, or each of its statements by itself."""
    operation: Operation[T] = work.start()
    parts_of = driver.parts
    try:
        call = next(operation)
        while True:
            parts = parts_of(call.statement)
            if len(parts) == 1:
                call = operation.send(_run(connection, driver, parts[0], call))
            else:
                call = operation.send(tuple([_run(connection, driver, part, call) for part in parts]))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _run(connection: sqlite3.Connection, driver: SQLiteDriver, part: Part, call: Call) -> Any:
    if call.each and not part.reads:
        rows = [[each[name] for name in part.names] for each in call.each]
        return connection.executemany(part.text, rows).rowcount
    params = call.params
    values = [params[name] for name in part.names]
    if not _PLAIN.issuperset(map(type, values)):
        values = [driver.bind(value) for value in values]
    try:
        cursor = connection.execute(part.text, values)
    except UnicodeEncodeError as error:
        raise LimitError("the text contains a lone surrogate: it is not valid Unicode and cannot be stored") from error
    return cursor.fetchall() if part.reads else cursor.rowcount
