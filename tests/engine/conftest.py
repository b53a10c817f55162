"""Fixtures of the engine's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import BackendDatabase
from tests.support.storages import Database


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
async def shared(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """A database that several can open at a time."""
    async with backend_database(request.param) as database:
        yield database
