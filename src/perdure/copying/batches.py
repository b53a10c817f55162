"""Read the rows of a table in the order of its primary key, in batches of limited size."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from perdure.copying.catalog import Kind, Table
from perdure.copying.database import Database, Row
from perdure.copying.values import Value, normalized
from perdure.errors import CopyError

BATCH_ROWS = 1000
BATCH_BYTES = 4 << 20  # as literals of MySQL this is at most 8 MiB, which fits into a packet
PARAMETERS_MAX = 30_000  # of a statement; PostgreSQL and SQLite allow 32,767

Key = tuple[Value, ...]
ALL = "1 = 1"
_WITHOUT_ROW_COMPARISONS = ("mysql",)  # it has them, but reads the whole table


async def batches(
    database: Database, table: Table, *, after: Key | None = None, rows_max: int = BATCH_ROWS, condition: str = ALL
) -> AsyncGenerator[list[list[Value]], None]:
    """Yield the rows after a key, in lists that are short enough to be kept in memory and written at once."""
    limit = min(rows_max, PARAMETERS_MAX // len(table.columns))
    while True:
        where, values = _after(database, table.key, after)
        names: dict[str, Any] = {
            "table": database.table(table.name),
            "key": ", ".join(table.key),
            "after": f"{condition} AND {where}",
        }
        sizes = await database.fetch("sizes", values, size=_size(database, table), limit=limit, **names)
        if not sizes:
            return
        fitting = _fitting([row[-1] for row in sizes])
        columns = ", ".join(table.columns)
        found = await database.fetch("rows", values, columns=columns, limit=fitting, **names)
        rows = [_normalized_row(database, table, row) for row in found]
        yield rows
        if fitting == len(sizes) < limit:
            return
        after = key_of(table, rows[-1])


def _normalized_row(database: Database, table: Table, row: Row) -> list[Value]:
    found: list[Value] = []
    for (column, kind), value in zip(table.columns.items(), row, strict=True):
        try:
            found.append(normalized(value, kind))
        except ValueError as error:
            key = [row[list(table.columns).index(each)] for each in table.key]
            raise CopyError(
                f"{table.name} {key} of {database.place} has an invalid {column}: {error}; correct or delete the row"
            ) from error
    return found


def key_of(table: Table, row: Sequence[Value]) -> Key:
    """Return the primary key of a row."""
    columns = list(table.columns)
    return tuple(row[columns.index(each)] for each in table.key)


def equal(database: Database, columns: Sequence[str], first: int = 1) -> str:
    """Return the condition that columns have the values of parameters, which are counted from `first`."""
    return " AND ".join(f"{each} = {database.driver.placeholder(first + n)}" for n, each in enumerate(columns))


def _after(database: Database, key: Sequence[str], after: Key | None) -> tuple[str, Sequence[Value]]:
    """Return the condition that a row comes after a key, and its values."""
    if after is None:
        return ALL, ()
    if len(key) == 1:
        return f"{key[0]} > {database.driver.placeholder(1)}", after
    if database.dialect not in _WITHOUT_ROW_COMPARISONS:
        marks = ", ".join(database.driver.placeholder(n + 1) for n in range(len(key)))
        return f"({', '.join(key)}) > ({marks})", after
    return _expanded(database, key, after)


def _expanded(database: Database, key: Sequence[str], after: Key) -> tuple[str, Sequence[Value]]:
    """Return the same without a comparison of rows."""
    cases: list[str] = []
    values: list[Value] = []
    for n, column in enumerate(key):
        same = f"{equal(database, key[:n], len(values) + 1)} AND " if n else ""
        cases.append(f"({same}{column} > {database.driver.placeholder(len(values) + n + 1)})")
        values += after[: n + 1]
    return f"({' OR '.join(cases)})", values


def _size(database: Database, table: Table) -> str:
    large = [column for column, kind in table.columns.items() if kind in (Kind.TEXT, Kind.BINARY)]
    return " + ".join(text for column in large for text in database.texts("byte_length", column=column)) or "0"


def _fitting(sizes: Sequence[int]) -> int:
    """Return how many of the first rows fit into a batch: at least one."""
    total = 0
    for n, size in enumerate(sizes):
        total += size
        if total > BATCH_BYTES and n:
            return n
    return len(sizes)
