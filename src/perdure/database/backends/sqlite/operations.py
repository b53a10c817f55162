"""Run operations on a connection to SQLite, in whichever thread calls."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from types import NoneType
from typing import Any, TypeVar

from perdure.database.dialects.base import Part
from perdure.database.dialects.sqlite import SQLiteDriver
from perdure.database.operation import Operation, Work
from perdure.database.statements import Call
from perdure.errors import LimitError

T = TypeVar("T")

_PLAIN = {NoneType, str, int, float, bytes}  # types that need no binding, which is nearly every value


class Operations:
    """Run operations in the dialect of a backend."""

    def __init__(self, driver: SQLiteDriver) -> None:
        self.driver = driver

    def run(self, connection: sqlite3.Connection, work: Work[T]) -> T:
        """Run an operation in the open transaction; without one, each of its statements separately."""
        operation: Operation[T] = work.start()
        run_part, parts_of = self.run_part, self.driver.parts
        try:
            call = next(operation)
            while True:
                parts = parts_of(call.statement)
                call = operation.send(parts.shape([run_part(connection, part, call) for part in parts]))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def run_part(self, connection: sqlite3.Connection, part: Part, call: Call) -> Any:
        """Run one part of a statement; return its rows, or the number of rows written."""
        try:
            if call.each and not part.reads:
                return connection.executemany(part.text, _rows(part.names, call.each)).rowcount
            params = call.params
            values = [params[name] for name in part.names]
            if not _PLAIN.issuperset(map(type, values)):
                values = [self.driver.bind(value) for value in values]
            cursor = connection.execute(part.text, values)
        except UnicodeEncodeError as error:
            raise LimitError(
                "the text contains a lone surrogate: it is not valid Unicode and cannot be stored"
            ) from error
        return cursor.fetchall() if part.reads else cursor.rowcount


def _rows(names: Sequence[str], items: Sequence[Mapping[str, object]]) -> Iterator[Sequence[object]]:
    """Return the values of each item in the order of the statement's parameters."""
    if len(names) == 1:
        return ((item[names[0]],) for item in items)
    return map(itemgetter(*names), items)
