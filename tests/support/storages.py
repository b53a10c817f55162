"""New storages on every backend, for one test each.

Creating the tables takes seconds on MySQL, so each server has one database per test process, emptied before every
test. A SQLite file is a copy of a template.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from perdure.engine.api.app import Client
from perdure.storage.migrations import tables
from perdure.storage.stores import SQLStorage, open_storage
from perdure.testing.reference import Reference

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
    """The reference: storages that share one state."""

    def __init__(self) -> None:
        super().__init__("reference", "")
        self._first = Reference()

    async def storage(self) -> SQLStorage:
        return cast(SQLStorage, Reference(self._first.world))  # tests use only the contract


@asynccontextmanager
async def reference_database() -> AsyncIterator[Database]:
    yield ReferenceDatabase()


@asynccontextmanager
async def server_database(backend: str, url: str) -> AsyncIterator[Database]:
    """Yield the database at the URL, migrated and emptied."""
    database = Database(backend, url)
    try:
        await wipe(await database.storage())
        yield database
    finally:
        await database.close()


async def wipe(storage: SQLStorage) -> None:
    """Empty every table except the ledger."""
    dialect = storage._backend.driver.name
    async with storage._backend.exclusive() as script:
        if dialect == "postgresql":
            names = map(storage._backend.driver.qualified, tables(dialect))
            await script.execute(f"TRUNCATE {', '.join(names)}")
            return
        if dialect == "mysql":
            await script.execute("SET FOREIGN_KEY_CHECKS = 0")
        for table in tables(dialect):
            await script.execute(f"DELETE FROM {table}")


def storage_of(app: Client) -> SQLStorage:
    """Return the storage of an app that was opened on a URL."""
    storage = app._storage
    assert isinstance(storage, SQLStorage)
    return storage
