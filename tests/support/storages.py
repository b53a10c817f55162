"""New storages on every backend, for one test each.

Creating the tables takes seconds on MySQL, so each server has one database per test process, emptied before every
test. A SQLite file is a copy of a template.
"""

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import cast

import psycopg
import pymysql
from pymysql.constants import CLIENT
from pymysql.cursors import Cursor

from perdure.engine.api.client import Client
from perdure.storage.contract import Storage
from perdure.storage.migrations import tables
from perdure.storage.stores import SQLStorage, open_storage, shift_clock
from perdure.testing.reference import Reference, World
from tests.support.databases import connect_mysql, fetch_mysql, mysql_login
from tests.support.leaks import kept

Owners = dict[str, str | None]  # by the ids of the runs

OWNERS = "SELECT instance_id, locked_by FROM workflow_instances WHERE locked_by IS NOT NULL"
BACKENDS = ("sqlite", "memory", "postgresql", "mysql")


class Database:
    """A database of one backend for tests: its URL, and storages on it."""

    def __init__(self, backend: str, url: str) -> None:
        self.backend, self.url = backend, url
        self._storages: list[SQLStorage] = []

    async def storage(self) -> SQLStorage:
        """Open another storage on the database, like another process; a database in memory has only one."""
        if self.backend == "memory" and self._storages:
            return self._storages[0]
        storage = open_storage(self.url)
        await storage.initialize()
        self._storages.append(storage)
        return storage

    def owners(self, sessions: "Sessions") -> "Owners":
        """Return the owner of the lease of each run; none of a database in memory, which only its storage sees."""
        if self.backend == "memory":
            return {}
        if self.backend != "sqlite":
            return sessions.owners(self.url)
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection:
            return dict(connection.execute(OWNERS))

    async def close(self) -> None:
        for storage in self._storages:
            await storage.close()


@asynccontextmanager
async def sqlite_database(folder: Path, template: Path) -> AsyncIterator[Database]:
    """Yield a copy of the template, which is created if it does not exist."""
    if not template.exists():
        async with open_storage(f"sqlite:///{template}"):
            pass
    path = folder / "perdure.db"
    shutil.copy(template, path)
    database = Database("sqlite", f"sqlite:///{path}")
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def memory_database() -> AsyncIterator[Database]:
    database = Database("memory", "sqlite:///:memory:")
    try:
        yield database
    finally:
        await database.close()


class ReferenceDatabase(Database):
    """The reference: storages on one world. An App takes a storage where other databases have a URL."""

    def __init__(self) -> None:
        self.backend = "reference"
        self._world = World()

    def owners(self, sessions: "Sessions") -> "Owners":
        return {run: row["locked_by"] for run, row in self._world.tables.workflow_instances.items()}

    @property
    def url(self) -> str:  # type: ignore[override]
        """A new storage, as another process would open the URL."""
        return cast(str, Reference(self._world))

    async def storage(self) -> SQLStorage:
        return cast(SQLStorage, Reference(self._world))  # tests ask for no more than the contract


@asynccontextmanager
async def reference_database() -> AsyncIterator[Database]:
    yield ReferenceDatabase()


@asynccontextmanager
async def server_database(backend: str, url: str, sessions: "Sessions | None" = None) -> AsyncIterator[Database]:
    """Yield the database at the URL, migrated and emptied, by one of the sessions if these are given."""
    database = Database(backend, url)
    try:
        if sessions is None or not sessions.empty(backend, url):
            await wipe(await database.storage())
        yield database
    finally:
        await database.close()


class Sessions:
    """Sessions that empty the databases of this process before each test.

    They stay open from one test to the next: a new session costs a server ten times as much as the deletes. They are
    synchronous, because each test has an event loop of its own.
    """

    def __init__(self) -> None:
        self._open: dict[str, psycopg.Connection | pymysql.Connection[Cursor]] = {}

    def empty(self, backend: str, url: str) -> bool:
        """Empty the database; return False if this is its first test, which may have to create the tables."""
        if url not in self._open:
            self._open[url] = _connect(backend, url)
            return False
        try:
            _delete_all(self._open[url])
        except (psycopg.OperationalError, pymysql.OperationalError):  # the last test ended all sessions of the server
            self._open.pop(url).close()
            self._open[url] = _connect(backend, url)
            _delete_all(self._open[url])
        return True

    def owners(self, url: str) -> Owners:
        """Return the owner of the lease of each run of a database that was emptied here."""
        session = self._open[url]
        if isinstance(session, psycopg.Connection):
            return dict(session.execute(OWNERS).fetchall())
        with session.cursor() as cursor:
            cursor.execute(OWNERS)
            found = dict(cursor.fetchall())
        session.commit()
        return found

    def close(self) -> None:
        for session in self._open.values():
            with suppress(pymysql.Error):  # already closed
                session.close()


def _connect(backend: str, url: str) -> "psycopg.Connection | pymysql.Connection[Cursor]":
    with kept():
        if backend == "postgresql":
            return psycopg.connect(url, autocommit=True)
        return pymysql.connect(**mysql_login(url), client_flag=CLIENT.MULTI_STATEMENTS)


def _delete_all(session: "psycopg.Connection | pymysql.Connection[Cursor]") -> None:
    if isinstance(session, psycopg.Connection):
        session.execute("; ".join(_deletes("postgresql", "perdure.")).encode())
        return
    with session.cursor() as cursor:
        cursor.execute("; ".join(_deletes("mysql")))
        while cursor.nextset():
            pass
    session.commit()


def shift(storage: Storage, seconds: float) -> None:
    """Move the clock of a storage to so many seconds ahead of the database's real one."""
    shift_clock(cast(SQLStorage, storage), timedelta(seconds=seconds))


async def wipe(storage: SQLStorage) -> None:
    """Empty every table except the ledger. TRUNCATE would take much longer, because it makes new files."""
    dialect = storage._backend.driver.name
    async with storage._backend.exclusive() as script:
        if dialect == "postgresql":
            await script.execute("; ".join(_deletes(dialect, storage._backend.driver.qualified(""))))
            return
        for statement in _deletes(dialect):
            await script.execute(statement)


def _deletes(dialect: str, schema: str = "") -> list[str]:
    """The statements that empty every table, on servers without checks of foreign keys."""
    deletes = [f"DELETE FROM {schema}{table}" for table in tables(dialect)]
    if dialect == "postgresql":
        return ["SET session_replication_role = replica", *deletes, "RESET session_replication_role"]
    return ["SET FOREIGN_KEY_CHECKS = 0", *deletes] if dialect == "mysql" else deletes


async def remove_deleted_keys(url: str) -> None:
    """Remove what MySQL keeps of deleted rows until its background threads are done with them.

    Inserting a key into a unique index where the same key was deleted locks the gap up to the next key, to keep others
    from inserting it as well. So a transaction could block another one because of an earlier test.
    """
    indexes = "SELECT DISTINCT table_name FROM information_schema.statistics WHERE table_schema = DATABASE()"
    async with connect_mysql(url) as connection:
        tables = await fetch_mysql(connection, f"{indexes} AND non_unique = 0 AND index_name <> 'PRIMARY'")
        await fetch_mysql(connection, "SET FOREIGN_KEY_CHECKS = 0")
        for (table,) in tables:
            await fetch_mysql(connection, f"TRUNCATE TABLE {table}")


def storage_of(app: Client) -> SQLStorage:
    """The storage of an app; tests ask the reference for no more than the contract."""
    storage = app._storage
    assert isinstance(storage, SQLStorage | Reference)
    return cast(SQLStorage, storage)
