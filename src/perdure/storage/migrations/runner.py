"""Brings a database to this version's tables, whoever made it and however many processes start at once.

The files are dbmate's, and so is the ledger `schema_migrations`: `dbmate` and this runner read each other's work, and
a database of Edda or Romancy is one that has the first file. Versions in the ledger that are not ours belong to a
newer release and are left alone.

SQLite and PostgreSQL change the tables in one transaction, all or nothing. MySQL commits every statement by itself, so
a start that finds a file half done runs it again from the top: a statement either leaves the same result when repeated,
or fails with the one number that says its effect is there. The lock is the one Edda takes.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import NamedTuple, Protocol

from perdure.errors import SchemaError

WAIT_SEC = 60.0  # for another process's migration, and for each lock on a table that is in use

_UP = re.compile(r"^-- migrate:up\b[^\n]*\n(.*?)(?=^-- migrate:down\b|\Z)", re.DOTALL | re.MULTILINE)
_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|--[^\n]*|/\*.*?\*/|;|[^'"`;/-]+|.""", re.DOTALL)
_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)")

_LEDGER = "CREATE TABLE IF NOT EXISTS schema_migrations (version VARCHAR(128) PRIMARY KEY)"
_APPLIED = "SELECT version FROM schema_migrations"
_RECORD = "INSERT INTO schema_migrations (version) VALUES ('{version}')"

_NO_TABLE = {"sqlite": 1, "postgresql": "42P01", "mysql": 1146}

_OPENING = {
    "sqlite": ("BEGIN IMMEDIATE",),
    "postgresql": (
        "BEGIN ISOLATION LEVEL READ COMMITTED",  # a stricter default would not see what was done during the wait
        "SET LOCAL statement_timeout = 0",
        f"SET LOCAL lock_timeout = '{WAIT_SEC:.0f}s'",
        "SELECT pg_advisory_xact_lock(20251217000000)",  # a session's lock would not outlive a pooler's transaction
    ),
}
# Somebody else was in the way: busy, deadlock, or the rest of the family making the same tables without the lock.
_COLLISIONS: dict[str, set[object]] = {"sqlite": {5, 6}, "postgresql": {"40P01", "40001", "23505", "42P07"}}
_PATIENCE_SEC = {"sqlite": WAIT_SEC, "postgresql": 5.0}  # SQLite has no queue to wait in

# The one error of a MySQL statement which says that its effect is there already.
_DONE = (
    (re.compile(r"ALTER TABLE \w+ ADD COLUMN "), 1060),
    (re.compile(r"CREATE INDEX "), 1061),
    (re.compile(r"DROP INDEX "), 1091),
    (re.compile(r"INSERT INTO schema_migrations "), 1062),
)


class Session(Protocol):
    """One connection of its own, in autocommit mode, to be closed after an error; the driver's errors pass through."""

    async def execute(self, sql: str) -> None: ...

    async def fetch(self, sql: str) -> list[tuple[object, ...]]: ...


class Migration(NamedTuple):
    """The up section of one file."""

    version: str
    statements: tuple[str, ...]


async def migrate(session: Session, dialect: str) -> list[str]:
    """Apply what the database lacks and give the versions applied here; return only when all of it is there.

    Raises `SchemaError` with the driver's error as its cause, or if another process holds the lock for too long.
    """
    run = _migrate_by_statement if dialect == "mysql" else _migrate_at_once
    try:
        return [] if await _is_current(session, dialect) else await run(session, dialect)
    except SchemaError:
        raise
    except Exception as error:
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        raise SchemaError(f"the {dialect} tables could not be brought up to date: {error}{where}") from error


class Reader(Protocol):
    """What can be asked for rows."""

    async def fetch(self, query: str, /) -> Sequence[tuple[object, ...]]: ...


async def missing(database: Reader, dialect: str) -> list[str]:
    """The versions that the database lacks."""
    return [migration.version for migration in await _missing(database, dialect)]


async def reset(session: Session, dialect: str) -> None:
    """Drop the family's tables, ours and the ledger, with every row: for tests."""
    statements = [statement for migration in up_statements(dialect) for statement in migration.statements]
    created = [found[1] for statement in statements if (found := _TABLE.match(statement))]
    for table in ["schema_migrations", *reversed(created)]:
        await session.execute(f"DROP TABLE IF EXISTS {table}")


def versions(dialect: str) -> list[str]:
    """All versions this release knows, oldest first."""
    return [migration.version for migration in up_statements(dialect)]


@cache
def up_statements(dialect: str) -> tuple[Migration, ...]:
    """The files of one dialect, oldest first."""
    found = sorted(files(__package__).joinpath(dialect).iterdir(), key=lambda file: file.name)
    return tuple(
        Migration(file.name.partition("_")[0], tuple(split(up[1])))
        for file in found
        if (up := _UP.search(file.read_text(encoding="utf-8")))
    )


def split(script: str) -> list[str]:
    """The statements of a script without their comments. Dollar quotes and backslash escapes are not understood."""
    texts = [""]
    for token in _TOKEN.findall(script):
        if token == ";":  # nosec B105 # of SQL
            texts.append("")
        elif not token.startswith(("--", "/*")):
            texts[-1] += token
    return [text.strip() for text in texts if text.strip()]


async def _migrate_at_once(session: Session, dialect: str) -> list[str]:
    deadline = time.monotonic() + _PATIENCE_SEC[dialect]
    while True:
        try:
            async with _transaction(session, _OPENING[dialect]):
                return await _apply_missing(session, dialect)
        except Exception as error:
            if not _collided(error, dialect) or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)


@asynccontextmanager
async def _transaction(session: Session, opening: Sequence[str]) -> AsyncIterator[None]:
    try:
        for statement in opening:
            await session.execute(statement)
        yield
        await session.execute("COMMIT")
    except BaseException:
        with suppress(Exception):
            await session.execute("ROLLBACK")
        raise


async def _migrate_by_statement(session: Session, dialect: str) -> list[str]:
    # Before the lock: by default a table in use is waited for up to a year, and the lock would be held all the while.
    await session.execute(f"SET SESSION lock_wait_timeout = {WAIT_SEC:.0f}")
    await _take_named_lock(session)
    try:
        return await _apply_missing(session, dialect)
    finally:
        with suppress(Exception):  # it ends with the connection anyway
            await session.fetch("SELECT RELEASE_LOCK('edda_migration')")


async def _take_named_lock(session: Session) -> None:
    deadline = time.monotonic() + WAIT_SEC
    while (await session.fetch(f"SELECT GET_LOCK('edda_migration', {min(WAIT_SEC, 5):.0f})"))[0][0] != 1:
        if time.monotonic() > deadline:
            raise SchemaError(f"another process has been changing the tables for more than {WAIT_SEC:.0f} seconds")


async def _apply_missing(session: Session, dialect: str) -> list[str]:
    await session.execute(_LEDGER)
    missing = await _missing(session, dialect)
    for migration in missing:
        for statement in (*migration.statements, _RECORD.format(version=migration.version)):
            try:
                await session.execute(statement)
            except Exception as error:
                if dialect != "mysql" or not _done_before(statement, error):
                    error.add_note(f"migration {migration.version}: {statement}")
                    raise
    return [migration.version for migration in missing]


async def _is_current(session: Session, dialect: str) -> bool:
    """Whether there is nothing to do, found out without a lock."""
    try:
        return not await _missing(session, dialect)
    except Exception as error:
        if _code(error, dialect) == _NO_TABLE[dialect] or _collided(error, dialect):
            return False
        raise


async def _missing(session: Reader, dialect: str) -> list[Migration]:
    applied = {str(version) for (version,) in await session.fetch(_APPLIED)}
    return [migration for migration in up_statements(dialect) if migration.version not in applied]


def _done_before(statement: str, error: Exception) -> bool:
    return any(kind.match(statement) and _code(error, "mysql") == number for kind, number in _DONE)


def _collided(error: Exception, dialect: str) -> bool:
    return _code(error, dialect) in _COLLISIONS.get(dialect, ())


def _code(error: Exception, dialect: str) -> object:
    """The driver's own name for what happened; None if the error is not the database's."""
    if dialect == "postgresql":
        return getattr(error, "sqlstate", None)
    if dialect == "sqlite":
        return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of the number is the finer reason
    return error.args[0] if error.args else None
