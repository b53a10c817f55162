"""Storages that refuse to write, and those that do not."""

from collections.abc import Callable

import pytest

from perdure.errors import StorageError
from perdure.storage.stores import (
    MySQLStorage,
    PostgresStorage,
    SQLiteStorage,
    SQLStorage,
    open_read_only,
    sqlite_path,
)
from perdure.testing.conformance.tools import new
from tests.support.databases import DATABASES
from tests.support.storages import Database

CLASSES: dict[str, Callable[[str], SQLStorage]] = {
    "sqlite": lambda url: SQLiteStorage(sqlite_path(url)),
    "postgresql": PostgresStorage,
    "mysql": MySQLStorage,
}

pytestmark = pytest.mark.parametrize("database", DATABASES, indirect=True)


async def test_storage_that_is_opened_to_read_refuses_to_write(database: Database) -> None:
    storage = await database.storage()
    await new(storage, "i-1")
    async with open_read_only(database.url) as reader:
        assert await reader.get_instance("i-1") is not None
        with pytest.raises(StorageError):
            await new(reader, "i-2")
    assert await storage.get_instance("i-2") is None


async def test_storage_of_each_class_writes_unless_told_otherwise(database: Database) -> None:
    async with CLASSES[database.url.partition(":")[0]](database.url) as storage:
        await new(storage, "i-1")
        assert await storage.get_instance("i-1") is not None
