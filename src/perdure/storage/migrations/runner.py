"""Bring a database to this version's tables, whichever framework created it and however many processes start at once.

The files and the ledger are dbmate's: `dbmate` and this runner understand each other's work, and a database of Edda or
Romancy is one that has the first file. Versions in the ledger that are not ours belong to a newer release and are left
alone. `placement` determines which schema and ledger are ours, and detects tables of others before any write.

SQLite and PostgreSQL change the tables in one transaction, all or nothing. MySQL commits every statement separately, so
a start that finds a half-applied file runs it again from the top: each statement either leaves the same result when
repeated, or fails with the one error number which shows that it took effect before. The lock is the one Edda takes; on
PostgreSQL, outside `public`, each schema has a lock of its own.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from perdure.database.dialects import DRIVERS, features_of
from perdure.database.dialects.postgres import quoted
from perdure.errors import SchemaError
from perdure.storage.migrations.files import tables, up_statements, versions
from perdure.storage.migrations.placement import (
    LEDGER,
    OWN_LEDGER,
    Reader,
    Session,
    check_tables,
    choose_ledger,
    existing_tables,
    find_schema,
    misplaced_versions,
    qualified,
    recorded_versions,
    require_schema,
    schema_errors,
)
from perdure.storage.migrations.statements import literal, render, render_all

WAIT_SEC = 60.0  # for another process's migration, and for each lock on a table that is in use

# Where writers queue for the tables, a collision is solved soon; otherwise the runner itself has to wait its turn.
QUEUED_SEC = 5.0

# The statements of migrations that may have taken effect before, by their kind in `ErrorCodes.repeated`.
_REPEATABLE = {
    "add column": re.compile(r"ALTER TABLE \w+ ADD COLUMN "),
    "create index": re.compile(r"CREATE INDEX "),
    "drop index": re.compile(r"DROP INDEX "),
    "insert": re.compile(r"INSERT INTO (?:perdure_)?schema_migrations "),
}


async def migrate(session: Session, dialect: str, schema: str = "") -> list[str]:
    """Apply the missing versions and return those applied here, once the database has all of them.

    `schema` is PostgreSQL's; without it the schema is detected. Raise `SchemaError` with the driver's error as its
    cause, if another process holds the lock for too long, or if a table with one of our names is not ours.
    """
    if features_of(dialect).schemas and not schema:
        schema = await find_schema(session, dialect)
    run = _migrate_at_once if features_of(dialect).transactional_ddl else _migrate_by_statement
    with schema_errors(dialect):
        return [] if await is_current(session, dialect, schema) else await run(session, dialect, schema)


async def missing(database: Reader, dialect: str, schema: str) -> list[str]:
    """Return the versions that the database lacks."""
    found = await existing_tables(database, dialect, schema)
    ledger = await choose_ledger(database, dialect, schema, found)
    applied = await recorded_versions(database, dialect, ledger, schema) if ledger in found else set()
    return [version for version in versions(dialect) if version not in applied]


async def reset(session: Session, dialect: str, schema: str = "") -> None:
    """Drop all tables, those of Edda and Romancy too, and the ledger, with every row; for tests."""
    if features_of(dialect).schemas and not schema:
        schema = await find_schema(session, dialect)
    found = await existing_tables(session, dialect, schema)
    check_tables(found, dialect, schema)
    for table in [await choose_ledger(session, dialect, schema, found), *reversed(tables(dialect))]:
        await session.execute(render("drop", dialect, table=qualified(table, schema)))


async def _migrate_at_once(session: Session, dialect: str, schema: str) -> list[str]:
    deadline = time.monotonic() + (QUEUED_SEC if features_of(dialect).row_locks else WAIT_SEC)
    opening = render_all("begin", dialect, wait=f"{WAIT_SEC:.0f}s")
    if features_of(dialect).schemas:
        opening.append(render("lock", dialect, key=_lock_key(schema)))
    while True:
        try:
            async with _transaction(session, dialect, opening):
                if features_of(dialect).schemas:
                    await require_schema(session, dialect, schema)
                    await session.execute(render("use_schema", dialect, schema=quoted(schema)))
                return await _apply_missing(session, dialect, schema)
        except Exception as error:
            if not _collided(error, dialect) or time.monotonic() > deadline:
                raise  # otherwise another process migrates at the same time: try again after it
        await asyncio.sleep(0.05)


def _lock_key(schema: str) -> str:
    """Return PostgreSQL's lock key: Edda's in `public`, one of our own in any other schema."""
    return "20251217000000" if schema == "public" else f"hashtextextended({literal(f'perdure/{schema}')}, 0)"


@asynccontextmanager
async def _transaction(session: Session, dialect: str, opening: Sequence[str]) -> AsyncIterator[None]:
    try:
        for statement in opening:
            await session.execute(statement)
        yield
        await session.execute(render("commit", dialect))
    except BaseException:
        with suppress(Exception):  # the connection may be lost; the first error is the one that matters
            await session.execute(render("roll_back", dialect))
        raise


async def _migrate_by_statement(session: Session, dialect: str, schema: str) -> list[str]:
    # Before the lock, which would be held during a long wait for a table.
    await session.execute(render("limit_waits", dialect, seconds=round(WAIT_SEC)))
    await _take_named_lock(session, dialect)
    try:
        return await _apply_missing(session, dialect, schema)
    finally:
        with suppress(Exception):  # it ends with the connection anyway
            await session.fetch(render("release_lock", dialect))


async def _take_named_lock(session: Session, dialect: str) -> None:
    deadline, take = time.monotonic() + WAIT_SEC, render("take_lock", dialect, seconds=round(min(WAIT_SEC, 5)))
    while (await session.fetch(take))[0][0] != 1:
        if time.monotonic() > deadline:
            raise SchemaError(
                f"another process has been migrating the tables for more than {WAIT_SEC:.0f} s: wait until it is done"
            )


async def _apply_missing(session: Session, dialect: str, schema: str) -> list[str]:
    found = await existing_tables(session, dialect, schema)
    check_tables(found, dialect, schema)
    ledger = await choose_ledger(session, dialect, schema, found)
    if ledger in found:
        applied, before = await recorded_versions(session, dialect, ledger, schema), []
    else:
        before = await misplaced_versions(session, dialect, schema, found) if ledger == OWN_LEDGER else []
        applied = set(before)
    create = render("create_ledger", dialect, ledger=ledger)
    missing = [migration for migration in up_statements(dialect) if migration.version not in applied]
    if before:
        records = [render("record", dialect, ledger=ledger, version=each) for each in before]
        await _run(session, dialect, "earlier versions", [create, *records])
    for version, statements in missing:
        # The ledger comes after the first tables: empty and alone it would be mistaken for another tool's.
        record = render("record", dialect, ledger=ledger, version=version)
        await _run(session, dialect, version, [*statements, create, record])
    return [migration.version for migration in missing]


async def _run(session: Session, dialect: str, version: str, statements: Sequence[str]) -> None:
    for statement in statements:
        try:
            await session.execute(statement)
        except Exception as error:
            # A statement that an interrupted migration has executed before is expected to fail.
            if features_of(dialect).transactional_ddl or not _done_before(statement, error, dialect):
                error.add_note(f"migration {version}: {statement}")
                raise


async def is_current(database: Reader, dialect: str, schema: str) -> bool:
    """Return whether there is nothing to do, without taking a lock."""
    for ledger in (LEDGER, OWN_LEDGER):
        try:
            if not set(versions(dialect)) - await recorded_versions(database, dialect, ledger, schema):
                return True
        except Exception as error:
            unreadable = DRIVERS[dialect].error_codes.unreadable  # there is no ledger, or it is another tool's
            if _code(error, dialect) not in unreadable and not _collided(error, dialect):
                raise
    return False


def _done_before(statement: str, error: Exception, dialect: str) -> bool:
    code, repeated = _code(error, dialect), DRIVERS[dialect].error_codes.repeated
    return any(code == repeated[kind] and _REPEATABLE[kind].match(statement) for kind in repeated)


def _collided(error: Exception, dialect: str) -> bool:
    """Return whether another process was in the way, such as Edda or Romancy creating the tables without the lock."""
    return _code(error, dialect) in DRIVERS[dialect].error_codes.collisions


def _code(error: Exception, dialect: str) -> object:
    """Return the driver's own code of an error, or None if the error is not the database's."""
    return DRIVERS[dialect]().error_code(error)
