"""Every backend and the reference; a test about the tables, which asks for `sql`, runs where there is SQL."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import BackendDatabase
from tests.support.storages import BACKENDS, Database


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database" in metafunc.fixturenames:
        backends = BACKENDS if "sql" in metafunc.fixturenames else (*BACKENDS, "reference")
        metafunc.parametrize("database", backends, indirect=True)


@pytest.fixture
async def database(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """An empty database, migrated, of each backend in turn."""
    async with backend_database(request.param) as database:
        yield database
