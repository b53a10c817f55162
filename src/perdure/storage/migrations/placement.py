"""Find our tables in a database that others use too: which schema, which ledger, and whose tables. Only reads.

On PostgreSQL the tables are in a schema of their own. Those of Edda or Romancy, and ours of earlier releases, are used
where they are: in a schema of the connection's search_path, or in `public`.

The ledger is `schema_migrations`, as in dbmate, Edda and Romancy, unless another tool has its own under that name:
Rails, Ecto, golang-migrate, or dbmate for another project. Then it is `perdure_schema_migrations`. A table
`schema_migrations` is ours if its only column is a text `version` and it has a version of ours, or is empty beside
tables of ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from perdure.database.dialects.postgres import quoted
from perdure.errors import SchemaError
from perdure.storage.migrations.files import tables, versions
from perdure.storage.migrations.statements import render

SCHEMA = "perdure"
LEDGER, OWN_LEDGER = "schema_migrations", "perdure_schema_migrations"
ANCHOR = "workflow_instances"  # the table by which a schema of ours is recognized

_TEXT_TYPES = ("char", "text")

Columns = Mapping[str, str]  # types by column name


class Reader(Protocol):
    """Fetch rows."""

    async def fetch(self, query: str, /) -> Sequence[tuple[object, ...]]: ...


class Session(Protocol):
    """Use one connection in autocommit mode, to be closed after an error; the driver's errors are not translated."""

    async def execute(self, sql: str) -> None: ...

    async def fetch(self, sql: str, /) -> list[tuple[object, ...]]: ...


async def find_schema(session: Reader, dialect: str) -> str:
    """Return the schema that has our tables or will have them, if the URL names none."""
    with schema_errors(dialect):
        columns = tables(dialect)[ANCHOR]
        about = {"anchor": ANCHOR, "schema": SCHEMA, "columns": columns, "count": len(columns)}
        rows = await session.fetch(render("schemas", dialect, **about))
        return str(rows[0][0]) if rows else SCHEMA


async def require_schema(session: Session, dialect: str, schema: str) -> None:
    """Create the schema if it does not exist; raise `SchemaError` without the privileges."""
    ((role, database, may_create, may_use),) = await session.fetch(render("rights", dialect, schema=schema))
    name = quoted(schema)
    if may_use is None and may_create:
        await session.execute(render("create_schema", dialect, schema=name))
    elif may_use is None:
        raise SchemaError(
            f"the schema {schema!r} does not exist in the database {database!r}, and the role {role!r} lacks the "
            f"privilege CREATE on the database to create it: have an administrator run CREATE SCHEMA {name} "
            f"AUTHORIZATION {quoted(str(role))}, or use ?schema=public in the URL"
        )
    elif not may_use:
        raise SchemaError(
            f"the role {role!r} lacks the privilege USAGE or CREATE on the schema {schema!r}: have its owner run GRANT "
            f"USAGE, CREATE ON SCHEMA {name} TO {quoted(str(role))}, or use another schema with ?schema= in the URL"
        )


async def existing_tables(session: Reader, dialect: str, schema: str) -> dict[str, Columns]:
    """Return the existing tables and views that have one of our names, with their columns."""
    query = render("existing", dialect, names=[*tables(dialect), LEDGER, OWN_LEDGER], schema=schema)
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in await session.fetch(query):
        found.setdefault(_plain(table), {})[_plain(column)] = _plain(kind)
    return dict(found)


def check_tables(found: Mapping[str, Columns], dialect: str, schema: str) -> None:
    """Raise `SchemaError` for a table that has one of our names and lacks columns of ours."""
    for table, columns in tables(dialect).items():
        if table in found and (missing := columns - found[table].keys()):
            where = f" in the schema {schema!r}" if schema else ""
            other = "another schema with ?schema= in the URL, or another database" if schema else "another database"
            raise SchemaError(
                f"the table {table!r}{where} is not perdure's: it has no column {', '.join(sorted(missing))}. Nothing "
                f"was changed. Use {other}"
            )


async def choose_ledger(session: Reader, dialect: str, schema: str, found: Mapping[str, Columns]) -> str:
    """Return the name of our ledger, whether it exists or not."""
    if OWN_LEDGER in found:
        return OWN_LEDGER
    if LEDGER not in found:
        return LEDGER
    columns = found[LEDGER]
    if columns.keys() != {"version"} or not any(kind in columns["version"] for kind in _TEXT_TYPES):
        return OWN_LEDGER
    recorded = await recorded_versions(session, dialect, LEDGER, schema)
    ours = not recorded.isdisjoint(versions(dialect)) if recorded else _has_tables(found, dialect)
    return LEDGER if ours else OWN_LEDGER


async def misplaced_versions(session: Session, dialect: str, schema: str, found: Mapping[str, Columns]) -> list[str]:
    """Return our versions that an earlier release, Edda or Romancy recorded in another tool's ledger."""
    if "version" not in found.get(LEDGER, ()) or not _has_tables(found, dialect):
        return []
    recorded = await recorded_versions(session, dialect, LEDGER, schema)
    return [version for version in versions(dialect) if version in recorded]


async def recorded_versions(session: Reader, dialect: str, ledger: str, schema: str) -> set[str]:
    """Return the versions that a ledger records as applied."""
    query = render("recorded", dialect, ledger=qualified(ledger, schema))
    return {str(version) for (version,) in await session.fetch(query)}


def qualified(table: str, schema: str) -> str:
    """Return a table's name for plain statements."""
    return f"{quoted(schema)}.{table}" if schema else table


@contextmanager
def schema_errors(dialect: str) -> Iterator[None]:
    """Raise a driver's error as the cause of a `SchemaError`."""
    try:
        yield
    except SchemaError:
        raise
    except Exception as error:
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        raise SchemaError(f"the {dialect} tables could not be brought up to date: {error}{where}") from error


def _has_tables(found: Mapping[str, Columns], dialect: str) -> bool:
    return not tables(dialect).keys().isdisjoint(found)


def _plain(name: object) -> str:
    """Return a name in lower case; MySQL returns some as bytes."""
    return (name.decode() if isinstance(name, bytes) else str(name)).lower()
