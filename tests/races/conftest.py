"""Races need two storages on one database, like two processes; a database in memory has only one."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import BackendDatabase
from tests.support.blocking import watching
from tests.support.storages import BACKENDS, Database, remove_deleted_keys


@pytest.fixture(params=[backend for backend in BACKENDS if backend != "memory"])
async def database(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """An empty database, migrated, of each backend that several processes can share."""
    async with backend_database(request.param) as database:
        if request.param == "mysql":
            await remove_deleted_keys(database.url)
        with watching(database):
            yield database
