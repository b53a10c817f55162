"""Fixtures of the engine's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import BackendDatabase
from tests.engine.reference import backends_of
from tests.support.storages import Database

# Not in SQLite's memory: what that does differently is the storage's, and its own tests run there. The engine's second
# storage without a file is the reference.
DATABASES = ("sqlite", "postgresql", "mysql")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every database and on the reference, unless the test or its module names its databases."""
    for fixture in ("database", "shared"):
        if fixture in metafunc.fixturenames and not _names_its_own(metafunc, fixture):
            backends = backends_of(metafunc.function.__name__, DATABASES)
            metafunc.parametrize(fixture, backends, indirect=True)


def _names_its_own(metafunc: pytest.Metafunc, fixture: str) -> bool:
    marks = metafunc.definition.iter_markers("parametrize")
    return hasattr(metafunc.module, fixture) or any(fixture in str(mark.args[0]) for mark in marks)


@pytest.fixture
async def database(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """An empty database, migrated, of each backend in turn."""
    async with backend_database(request.param) as database:
        yield database


@pytest.fixture
async def shared(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """A database that several can open at a time."""
    async with backend_database(request.param) as database:
        yield database


@pytest.fixture
async def memory(backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """A database in memory, for what does not depend on the database."""
    async with backend_database("memory") as database:
        yield database
