"""Fresh storages on every backend for one test each.

Making a schema takes seconds on MySQL, so each server has one database a test process, emptied before every test; a
SQLite file is a copy of one made once.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from perdure.engine.api.client import Client
from perdure.storage.migrations import tables
from perdure.storage.stores import SQLStorage, open_storage
from perdure.testing.reference import Reference

BACKENDS = ("sqlite", "memory", "postgresql", "mysql")


class Database:
    """One backend's database, as tests see it: a URL, and storages on it."""

    def __init__(self, backend: str, url: str) -> None:
        self.backend, self.url = backend, url
        self._storages: list[SQLStorage] = []

    async def storage(self) -> SQLStorage:
        """A new storage on the database, as another process would have it; in memory there is but one."""
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
    """A copy of the template, which is made when it is not there."""
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
    """The reference: storages on one world."""

    def __init__(self) -> None:
        super().__init__("reference", "")
        self._first = Reference()

    async def storage(self) -> SQLStorage:
        return cast(SQLStorage, Reference(self._first.world))  # tests ask for no more than the contract


@asynccontextmanager
async def reference_database() -> AsyncIterator[Database]:
    yield ReferenceDatabase()


@asynccontextmanager
async def server_database(backend: str, url: str) -> AsyncIterator[Database]:
    """The database at the URL, migrated and emptied."""
    database = Database(backend, url)
    try:
        await wipe(await database.storage())
        yield database
    finally:
        await database.close()


async def wipe(storage: SQLStorage) -> None:
    """Empty every table but the ledger."""
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
    """The storage of an app that was opened on a URL."""
    storage = app._storage
    assert isinstance(storage, SQLStorage)
    return storage
