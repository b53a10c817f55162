"""Combine all aggregates on one backend, and open a storage by its URL."""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Self

from perdure.database.backends.base import Backend, Executor, PooledBackend
from perdure.database.backends.sqlite import SQLiteBackend
from perdure.database.backends.sqlite.url import is_in_memory as is_in_memory
from perdure.database.backends.sqlite.url import parse as parse_sqlite_url
from perdure.database.cancellation import finish
from perdure.database.dialects import Features, new_driver
from perdure.database.secret import Secret
from perdure.database.urls import limit_idle_transactions as limit_idle_transactions
from perdure.errors import SchemaError, StorageError
from perdure.storage.archive import Archive
from perdure.storage.channels import Channels
from perdure.storage.compensations import Compensations
from perdure.storage.definitions import Definitions
from perdure.storage.deletion import Deletion
from perdure.storage.delivery import Delivery
from perdure.storage.encoded_rows import EncodedRows
from perdure.storage.groups import Groups
from perdure.storage.history import History
from perdure.storage.instances import Instances
from perdure.storage.journals import Journals
from perdure.storage.listing import Listing
from perdure.storage.locks import Locks
from perdure.storage.migrations import Reader, find_schema, is_current, migrate, missing, reset, versions
from perdure.storage.outbox import Outbox
from perdure.storage.parking import Parking
from perdure.storage.stuck import Stuck
from perdure.storage.system_locks import SystemLocks
from perdure.storage.timers import Timers
from perdure.storage.wakeups import Wakeups
from perdure.storage.workers import Workers

log = logging.getLogger("perdure.storage")


class SQLStorage(
    Instances,
    Definitions,
    Deletion,
    Listing,
    Locks,
    Stuck,
    History,
    Journals,
    Archive,
    Compensations,
    Groups,
    Timers,
    Channels,
    Delivery,
    Parking,
    Outbox,
    SystemLocks,
    Workers,
    EncodedRows,
    Wakeups,
):
    """Combine all aggregates on a backend."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._opened = self._closed = False

    async def initialize(self) -> None:
        """Connect and bring the schema up to date; any number of processes may do so at once."""
        await self._connect()
        if await self._is_current():
            return
        async with self._backend.exclusive() as script:
            applied = await migrate(script, self._backend.driver.name, await self._locate(script))
        if applied:
            log.info(
                "applied %d migrations to the %s database, up to version %s",
                len(applied),
                self._backend.driver.name,
                applied[-1],
                extra={"versions": applied},
            )

    @property
    def pool_use(self) -> tuple[int, int] | None:
        """Return how many connections of the pool are in use, and the maximum; None on SQLite, which has no pool."""
        return self._backend.pool_use if isinstance(self._backend, PooledBackend) else None

    async def _connect_current(self) -> None:
        """Connect to a schema that is up to date; raise `SchemaError` if it is not, without changing it."""
        if pending := await self._pending():
            if len(pending) == len(versions(self._backend.driver.name)):
                raise SchemaError(
                    f"the {self._backend.driver.name} database has no tables of perdure, and it was opened without "
                    "creating them: check the URL, or create them with `perdure migrate up` or `async with "
                    "open_storage(url)`"
                )
            raise SchemaError(
                f"the {self._backend.driver.name} database lacks {len(pending)} migrations of this version, the first "
                f"is {pending[0]}, and it was opened without applying them: apply them first (`perdure migrate up`, or "
                "`async with open_storage(url)`), or use the version of perdure that the database has"
            )

    async def _pending(self) -> list[str]:
        """Connect, and return the versions that the database lacks, without changing it."""
        await self._connect()
        async with self._backend.exclusive() as script:  # others begin transactions that write
            return await missing(script, self._backend.driver.name, await self._locate(script))

    async def _is_current(self) -> bool:
        """Return whether the schema is up to date, without a connection of its own; an error is for the migration."""
        try:
            return await is_current(self.db(), self._backend.driver.name, await self._locate(self.db()))
        except StorageError:
            return False

    async def _locate(self, database: Reader) -> str:
        """Return the schema that holds the tables, where a database has several."""
        return ""

    async def pending_migrations(self) -> list[str]:
        """Return the schema versions that this release knows and the database lacks."""
        return await missing(self.conn(), self._backend.driver.name, self.schema)

    async def _connect(self) -> None:
        if not self._opened:
            await self._backend.open()
            self._opened = True

    async def close(self) -> None:
        """Close every connection, even if the task is cancelled meanwhile."""
        self._closed = True
        await finish(self._backend.close())

    @property
    def is_open(self) -> bool:
        """Return whether the storage was opened, and not closed since."""
        return self._opened and not self._closed

    @property
    def dialect(self) -> str:
        """Return the name of the dialect: sqlite, postgresql or mysql."""
        return self._backend.driver.name

    @property
    def features(self) -> Features:
        """Return what the database can do."""
        return self._backend.driver.features

    def db(self) -> Executor:
        """Return the database outside any transaction, for migrations and checks."""
        return self._backend.executor()

    def _shift_clock(self, shift: timedelta) -> None:
        self._backend.driver.shift_clock(shift)

    @property
    def schema(self) -> str:
        """Return the schema that holds the tables, on PostgreSQL."""
        return ""

    async def __aenter__(self) -> Self:
        try:
            await self.initialize()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SQLiteStorage(SQLStorage):
    """Store in one SQLite file that any number of processes share, or privately in memory (`:memory:`)."""

    def __init__(self, path: str, *, read_only: bool = False, must_exist: bool = False) -> None:
        super().__init__(SQLiteBackend(path, read_only=read_only, must_exist=must_exist))


class PostgresStorage(SQLStorage):
    """Store in PostgreSQL 14 or later, also behind PgBouncer, in the schema `perdure` or the one in the URL."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        from perdure.database.backends.postgres import PostgresBackend  # needs the driver of an extra

        self._postgres = PostgresBackend(url := Secret(url), read_only=read_only)  # a traceback may show `url`
        super().__init__(self._postgres)

    async def _locate(self, database: Reader) -> str:
        driver = self._postgres.driver
        if not driver.schema:
            driver.use_schema(await find_schema(database, driver.name))
        return driver.schema

    @property
    def schema(self) -> str:
        """Return the schema that holds the tables."""
        return self._postgres.driver.schema

    def set_notify_enabled(self, enabled: bool) -> None:
        """Set whether transactions that create work send NOTIFY."""
        self._postgres.notifier.enabled = enabled

    def is_notify_enabled(self) -> bool:
        """Return whether NOTIFY is sent."""
        return self._postgres.notifier.enabled


class MySQLStorage(SQLStorage):
    """Store in MySQL 8.0, MariaDB 10.6 or later."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        from perdure.database.backends.mysql import MySQLBackend  # needs the driver of an extra

        super().__init__(MySQLBackend(url := Secret(url), read_only=read_only))


def open_storage(url: str) -> SQLiteStorage | PostgresStorage | MySQLStorage:
    """Return a storage for a URL: `sqlite:///file.db`, `sqlite:///:memory:`, `postgresql://…` or `mysql://…`.

    It is not connected yet: use `await storage.initialize()`, or `async with open_storage(url) as storage:`.
    """
    return _storage(url := Secret(url), read_only=False)  # a traceback may show `url`


@asynccontextmanager
async def open_read_only(url: str) -> AsyncIterator[SQLStorage]:
    """Open a storage that refuses to write: nothing is created or migrated, and a role that may only read is enough.

    Raise `SchemaError` if the tables are not those of this version. Behind PgBouncer, which shares sessions,
    the server is not told to refuse writes.
    """
    async with _current(_storage(url := Secret(url), read_only=True)) as storage:
        yield storage


@asynccontextmanager
async def open_migrated(url: str) -> AsyncIterator[SQLStorage]:
    """Open a storage whose tables are there and up to date: nothing is created or migrated.

    Raise `SchemaError` if the tables are not those of this version, and `ConfigurationError` if a SQLite file does not
    exist.
    """
    async with _current(_storage(url := Secret(url), read_only=False, must_exist=True)) as storage:
        yield storage


async def migration_status(url: str, *, create: bool = False) -> list[str]:
    """Return the versions that a database lacks, without changing it.

    A SQLite file that does not exist lacks all with `create`; otherwise it is a `ConfigurationError`.
    """
    if create and (dialect := new_driver(url := Secret(url)).name) == "sqlite" and not _has_file(url):
        return versions(dialect)
    storage = _storage(url := Secret(url), read_only=True)
    try:
        return await storage._pending()
    finally:
        await storage.close()


def _has_file(url: str) -> bool:
    return os.path.exists(sqlite_path(url))


def sqlite_path(url: str) -> str:
    """Return the path of the file of a SQLite URL, or `:memory:`."""
    return parse_sqlite_url(url)


@asynccontextmanager
async def _current(storage: SQLStorage) -> AsyncIterator[SQLStorage]:
    try:
        await storage._connect_current()
        yield storage
    finally:
        await storage.close()


def _storage(url: str, *, read_only: bool, must_exist: bool = False) -> SQLiteStorage | PostgresStorage | MySQLStorage:
    match new_driver(url).driver_name():
        case "postgresql":
            return PostgresStorage(url, read_only=read_only)
        case "mysql":
            return MySQLStorage(url, read_only=read_only)
    return SQLiteStorage(parse_sqlite_url(url), read_only=read_only, must_exist=must_exist)


def backend_of(storage: SQLStorage) -> Backend:
    """Return the backend of a storage, for what is stored beside the contract."""
    return storage._backend


async def initialize_test_schema(storage: SQLStorage) -> None:
    """Create a fresh schema for a test; all existing tables of ours are dropped first."""
    await storage._connect()
    async with storage._backend.exclusive() as script:
        dialect, schema = storage._backend.driver.name, await storage._locate(script)
        await reset(script, dialect, schema)
        await migrate(script, dialect, schema)


def shift_clock(storage: SQLStorage, shift: timedelta) -> None:
    """Move the clock that this storage's statements use; for tests."""
    storage._shift_clock(shift)


def stop_clock(storage: SQLStorage, at: datetime | None) -> None:
    """Let the clock that this storage's statements use stand still at a time, or with None run again; for tests."""
    storage._backend.driver.stop_clock(at)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Executor]:
    """Connect to a database for the block, without creating our tables; for tests."""
    storage = open_storage(url)
    await storage._connect()
    try:
        yield storage.db()
    finally:
        await storage.close()
