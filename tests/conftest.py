"""Fixtures for the whole suite.

The databases' servers are started when the first test asks for one, once per process: under xdist each worker has its
own. A start takes under a second and 25 MB (PostgreSQL) or 100 MB (MariaDB), less than sharing one server between
workers would cost in rules for stopping it, and the load of one worker never affects timings or locks of another.

PERDURE_TEST_POSTGRES_URL and PERDURE_TEST_MYSQL_URL name existing servers instead. Nothing is skipped: a database that
can be neither started nor reached is an error. PERDURE_TEST_DATABASE names the database that is used there.
"""

import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from perdure.database.backends.base import Executor
from perdure.engine.replay.definitions import ACTIVITIES
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import Shift
from perdure.testing.servers import MySQLServer, PostgresServer, memory_folder
from tests.support import leaks
from tests.support.databases import fresh_mysql, fresh_postgres, named_database
from tests.support.storages import (
    BACKENDS,
    Database,
    Sessions,
    memory_database,
    reference_database,
    server_database,
    shift,
    sqlite_database,
)

TIMEOUT_AGAIN_SEC = 10.0
# One of these that starts last would keep one worker of xdist busy after all others have ended.
FIRST = {
    "test_commands_of_all_pages_print_what_they_show",
    "test_every_page_is_clean_accessible_and_fits_a_phone",
    "test_idle_app_sends_few_statements",
    "test_one_query_per_second_serves_all_awaited_results",
    "test_no_statement_reads_more_in_a_larger_database",
    "test_a_copy_continues_after_a_crash_before_any_write",
    "test_servers_end_with_their_parent_and_directories_are_removed_later",
    "test_run_that_kills_its_workers_is_backed_off_after_three_deaths",
    "test_diagram_in_the_browser",
}

settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy
settings.load_profile("suite")

BackendDatabase = Callable[[str], AbstractAsyncContextManager[Database]]


def pytest_configure(config: pytest.Config) -> None:
    """Look for leaks. Keep temporary files in memory, as the servers do: SQLite waits for every commit on a disk."""
    config.pluginmanager.register(leaks)
    if (memory := memory_folder(4 << 30)) is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None, object, object]:
    """Let a timeout repeat: its first error may end a background task, or the test's teardown may hang as well."""
    result = yield
    if settings.method == "signal":
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, TIMEOUT_AGAIN_SEC)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, object, object]:
    """Describe a failure without a timeout and without collecting garbage, which could both crash pytest.

    pytest parses the source of the failed test. If a task whose error nobody has retrieved is collected meanwhile, its
    traceback is logged, which parses source as well. On Python 3.11, nested calls of `ast.parse()` raise SystemError.
    """
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, *timer)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests."""
    items.sort(key=lambda item: item.name.partition("[")[0] not in FIRST)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage, which takes a quarter of the time: next to nothing becomes garbage.

    Later garbage collections leave out what was collected: it is most of what they would look at.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MySQLServer]:
    with MySQLServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest) -> str:
    """A server where tests may create databases."""
    return os.environ.get("PERDURE_TEST_POSTGRES_URL") or request.getfixturevalue("postgres_server").url


@pytest.fixture(scope="session")
def mysql_url(request: pytest.FixtureRequest) -> str:
    """A server where tests may create databases."""
    return os.environ.get("PERDURE_TEST_MYSQL_URL") or request.getfixturevalue("mysql_server").url


@pytest.fixture
async def fresh_postgres_db(postgres_url: str) -> AsyncIterator[str]:
    """The URL of an empty database of this test's own."""
    async with fresh_postgres(postgres_url) as url:
        yield url


@pytest.fixture
async def fresh_mysql_db(mysql_url: str) -> AsyncIterator[str]:
    """The URL of an empty database of this test's own."""
    async with fresh_mysql(mysql_url) as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the migrated SQLite file that tests copy."""
    return tmp_path_factory.mktemp("template") / "template.db"


@pytest.fixture(scope="session")
def shared_database_name() -> str:
    """The name of this process's database on each server."""
    return os.environ.get("PERDURE_TEST_DATABASE") or f"perdure_suite_{uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    """The sessions that empty this process's databases between two tests."""
    sessions = Sessions()
    yield sessions
    sessions.close()


@pytest.fixture
def backend_database(
    request: pytest.FixtureRequest, tmp_path: Path, sqlite_template: Path, shared_database_name: str, sessions: Sessions
) -> BackendDatabase:
    """A function that opens an empty, migrated database of a backend."""

    @asynccontextmanager
    async def opened(backend: str) -> AsyncIterator[Database]:
        if backend == "sqlite":
            context = sqlite_database(tmp_path, sqlite_template)
        elif backend == "memory":
            context = memory_database()
        elif backend == "reference":
            context = reference_database()
        else:
            server: str = request.getfixturevalue("postgres_url" if backend == "postgresql" else "mysql_url")
            context = server_database(backend, await named_database(server, shared_database_name), sessions)
        leaks.forget_workers()
        async with context as database:
            yield database
            if left := leaks.leases_of_stopped(lambda: database.owners(sessions)):
                pytest.fail("workers stopped and left this behind:\n" + "\n".join(left), pytrace=False)

    return opened


@pytest.fixture(params=BACKENDS)
async def database(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """An empty, migrated database of each backend."""
    async with backend_database(request.param) as database:
        yield database


@pytest.fixture
async def storage(database: Database) -> SQLStorage:
    """A new storage of the backend under test."""
    return await database.storage()


@pytest.fixture
async def peer(storage: SQLStorage, database: Database) -> SQLStorage:
    """A second storage on the same database, like that of another process."""
    return await database.storage()


@pytest.fixture
async def sql(storage: SQLStorage) -> Executor:
    """SQL on the tables of the backend under test; the reference has none, so tests with this do not run on it."""
    return storage.db()


@pytest.fixture(name="shift")
def shift_fixture() -> Shift:
    """How the tests of the conformance suite move a storage's clock."""
    return shift


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Let each test module define activities of any name, as if it were a program of its own."""
    if isinstance(collector, pytest.Module):
        ACTIVITIES.clear()
