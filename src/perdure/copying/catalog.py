"""The tables of a database, as its own catalog describes them: columns, keys, references, and the order to copy them.

Which tables there are is known from the migrations. All else is read, so that a new column, table or foreign key is
copied without a change here.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from graphlib import TopologicalSorter
from typing import Any

from perdure.copying.database import Database, Row
from perdure.errors import CopyError
from perdure.storage.migrations import tables as known_tables
from perdure.storage.migrations.statements import literal

_NEXT = re.compile(r"\bAUTO_INCREMENT=(\d+)")


class Kind(Enum):
    """What the values of a column are, on every database."""

    TEXT = "text"
    INTEGER = "integer"
    BINARY = "binary"
    TIME = "time"


_KINDS = (("timestamp", Kind.TIME), ("datetime", Kind.TIME), ("int", Kind.INTEGER), ("blob", Kind.BINARY))
_MORE_KINDS = (("bytea", Kind.BINARY), ("binary", Kind.BINARY), ("char", Kind.TEXT), ("text", Kind.TEXT))


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its stored columns by name, its primary key, and the tables that its columns refer to.

    `own_references` are the columns that refer to the table itself.
    """

    name: str
    columns: Mapping[str, Kind]
    key: tuple[str, ...]
    references: frozenset[str]
    own_references: tuple[str, ...]


async def read_tables(database: Database) -> dict[str, Table]:
    """Return the tables of perdure by name, each after those that it refers to.

    Raise `CopyError` for a table that cannot be copied: it is missing, has no primary key, or a column of unknown type.
    """
    names = list(known_tables(database.dialect))
    listed = literal(names)
    columns: dict[str, dict[str, Kind]] = {}
    keys: dict[str, dict[int, str]] = {}
    for table, column, type_name, is_generated, position in map(_plain, await database.fetch("columns", names=listed)):
        if not is_generated:
            columns.setdefault(table, {})[column] = _kind(table, column, type_name)
        if position:
            keys.setdefault(table, {})[position] = column
    references: dict[str, dict[str, str]] = {}
    for table, column, other in map(_plain, await database.fetch("references", names=listed)):
        references.setdefault(table, {})[column] = other
    if lost := [name for name in names if name not in keys]:
        raise CopyError(f"the tables {', '.join(lost)} of {database.place} do not exist or have no primary key")
    found = {
        name: Table(
            name,
            columns[name],
            tuple(column for _, column in sorted(keys[name].items())),
            frozenset(references.get(name, {}).values()),
            tuple(column for column, other in references.get(name, {}).items() if other == name),
        )
        for name in names
    }
    # A column that refers to its own table is copied after all rows.
    order = TopologicalSorter({name: table.references - {name} for name, table in found.items()})
    return {name: found[name] for name in order.static_order()}


def common_tables(source: Mapping[str, Table], target: Mapping[str, Table]) -> dict[str, Table]:
    """Return the tables that are copied; raise `CopyError` if source and target do not have the same columns.

    SQLite has no type for times, so a column is a time if one of the two says so.
    """
    found: dict[str, Table] = {}
    for name in _same(source, target, "tables"):
        one, other = source[name], target[name]
        _same(one.columns, other.columns, f"columns of {name}")
        kinds = {column: _stricter(one.columns[column], other.columns[column]) for column in one.columns}
        found[name] = Table(name, kinds, one.key, one.references | other.references, one.own_references)
    return found


def _same(source: Collection[str], target: Collection[str], what: str) -> Collection[str]:
    if differing := sorted(set(source) ^ set(target)):
        raise CopyError(
            f"the {what} differ between source and target: {', '.join(differing)}. Nothing was copied. Remove what "
            "another program has added, or use the release of perdure that knows it"
        )
    return source


def _stricter(one: Kind, other: Kind) -> Kind:
    return Kind.TIME if Kind.TIME in (one, other) else one


def _kind(table: str, column: str, type_name: str) -> Kind:
    for part, kind in (*_KINDS, *_MORE_KINDS):
        if part in type_name.lower():
            return kind
    raise CopyError(f"the column {column} of {table} has the type {type_name}, which perdure cannot copy")


def _plain(row: Row) -> Row:
    """Return a row of a catalog; MySQL returns some names as bytes."""
    return tuple(value.decode() if isinstance(value, bytes) else value for value in row)


# The counters from which new ids come. They may be ahead of the highest id, because rows were deleted.


async def read_counters(database: Database, tables: Collection[Table]) -> dict[str, int]:
    """Return the last id that each table has generated, for the tables that generate ids."""
    found: dict[str, int] = {}
    for table in tables:
        if len(table.key) == 1 and table.columns[table.key[0]] is Kind.INTEGER:
            last = await _counter(database, table)
            if last is not None:
                found[table.name] = last
    return found


async def write_counter(database: Database, table: Table, last: int) -> None:
    """Let a table generate ids after this one."""
    async with database.together() as transaction:
        await database.execute("set_counter", on=transaction, last=last, following=last + 1, **_names(database, table))


async def _counter(database: Database, table: Table) -> int | None:
    rows = await database.fetch("counter", **_names(database, table))
    if not rows:
        return 0
    value = rows[0][-1]
    if isinstance(value, int | None):
        return value
    following = _NEXT.search(value.decode() if isinstance(value, bytes) else value)
    return int(following[1]) - 1 if following else 0


def _names(database: Database, table: Table) -> dict[str, Any]:
    written = database.table(table.name)
    return {
        "name": literal(table.name),
        "table": written,
        "qualified": literal(written),
        "column": literal(table.key[0]),
    }
