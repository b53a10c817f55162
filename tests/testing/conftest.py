"""Fixtures of the tests of the testing kit."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import BackendDatabase
from tests.support.databases import DATABASES
from tests.support.storages import Database


@pytest.fixture(params=[*DATABASES, "reference"])
async def everywhere(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """An empty database of each kind, and the reference."""
    async with backend_database(request.param) as database:
        yield database


@pytest.fixture
async def reference(backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """The reference, for what does not depend on the database."""
    async with backend_database("reference") as database:
        yield database
