"""Fixtures of the engine's tests."""

import os
from collections.abc import AsyncIterator, Sequence
from zlib import crc32

import pytest

from tests.conftest import BackendDatabase
from tests.engine.reference import backends_of
from tests.support.databases import DATABASES
from tests.support.storages import Database

# Not in SQLite's memory: what that does differently is the storage's, and its own tests run there. The engine's second
# storage without a file is the reference.
# These packages import no storage, which an import contract checks: one database is enough.
WITHOUT_STORAGE = ("history", "replay")
SERVERS = DATABASES[1:]
EVERYWHERE = os.environ.get("PERDURE_TEST_DATABASES") == "all"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on several databases and on the reference, unless the test or its module names its databases."""
    for fixture in ("database", "shared"):
        if fixture in metafunc.fixturenames and not _names_its_own(metafunc, fixture):
            backends = backends_of(metafunc.function.__name__, _databases(metafunc))
            metafunc.parametrize(fixture, backends, indirect=True)


def _databases(metafunc: pytest.Metafunc) -> Sequence[str]:
    """Return where a test runs: a guarantee is checked on every database, the rest on SQLite and one server by turns.

    Engine code does the same on every database, and the conformance suite checks on each that its storage does, too.
    """
    if metafunc.definition.path.parent.name in WITHOUT_STORAGE:
        return DATABASES[:1]
    if EVERYWHERE or metafunc.definition.get_closest_marker("guarantee"):
        return DATABASES
    return DATABASES[0], SERVERS[crc32(metafunc.function.__name__.encode()) % len(SERVERS)]


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
