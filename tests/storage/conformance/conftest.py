"""Every database; `tests/testing/test_own_storage.py` runs the same tests on the reference."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import BackendDatabase
from tests.support.storages import BACKENDS, Database

# SQLite in memory executes the statements of SQLite in a file. It differs in its one connection, which transactions,
# locks and batches depend on.
IN_MEMORY = ("test_creation", "test_history", "test_locks", "test_system_locks", "test_transactions")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database" in metafunc.fixturenames:
        in_memory = metafunc.definition.path.stem in IN_MEMORY
        backends = [backend for backend in BACKENDS if backend != "memory" or in_memory]
        metafunc.parametrize("database", backends, indirect=True)


@pytest.fixture
async def database(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """An empty database, migrated, of each backend in turn."""
    async with backend_database(request.param) as database:
        yield database
