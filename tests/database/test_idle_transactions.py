"""`idle_transaction_timeout`: the server ends an idle transaction, and its caller gets an error that says so.

A worker that is frozen (SIGSTOP) sees nothing meanwhile; here the event loop is blocked for that long instead.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from perdure.database.backends.mysql import backend as mysql_backend
from perdure.database.backends.mysql import url as mysql_url
from perdure.database.backends.postgres import url as postgres_url
from perdure.database.backends.server import adapter, transaction
from perdure.database.backends.server.backend import ServerBackend
from perdure.database.operation import Operation, Work
from perdure.errors import ConfigurationError, DatabaseUnavailableError
from perdure.model.records import HistoryEvent, Lease
from perdure.storage.history import append, event_params
from perdure.storage.stores import SQLStorage, open_storage
from perdure.testing.conformance.tools import leased
from perdure.testing.servers import MySQLServer, PgBouncer, PostgresServer
from tests.support.databases import named_database
from tests.support.storages import server_database, shift

STEP = HistoryEvent("i-1", "s:1", "ActivityCompleted", b"1")


class Place(NamedTuple):
    """A database, and how to ask for a net there."""

    url: str
    seconds: float
    shown: str


@pytest.fixture(scope="module")
def pooler(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    with PgBouncer(postgres_server) as pooler:
        yield pooler


@pytest.fixture(params=["postgresql", "pgbouncer", "mariadb"])
async def place(request: pytest.FixtureRequest, shared_database_name: str) -> AsyncIterator[Place]:
    if request.param == "mariadb":
        mysql: MySQLServer = request.getfixturevalue("mysql_server")
        async with server_database("mysql", await named_database(mysql.url, shared_database_name)) as database:
            yield Place(database.url, 1, "SELECT @@idle_transaction_timeout")
        return
    postgres: PostgresServer = request.getfixturevalue("postgres_server")
    async with server_database("postgresql", await named_database(postgres.url, shared_database_name)) as database:
        url = urlsplit(database.url)
        if request.param == "pgbouncer":
            url = urlsplit(request.getfixturevalue("pooler").url)._replace(path=url.path)
        yield Place(url.geturl(), 0.5, "SHOW idle_in_transaction_session_timeout")


@pytest.fixture
async def storage(place: Place) -> AsyncIterator[SQLStorage]:
    """A storage with an idle timeout and one connection, so that a lost connection is detected."""
    url = f"{place.url}?pool_size=1&pool_timeout=5&idle_transaction_timeout={place.seconds}"
    async with open_storage(url) as storage:
        yield storage


@pytest.fixture
async def peer(place: Place) -> AsyncIterator[SQLStorage]:
    """Without a net, at a time when leases are over."""
    async with open_storage(place.url) as peer:
        shift(peer, 3600)
        yield peer


async def taken_over(peer: SQLStorage) -> Lease:
    """Return once the row is free, and taken."""
    async with asyncio.timeout(20):
        while True:
            lease = await peer.try_acquire_lock("i-1", "w2", 30)
            if lease is not None:
                return lease
            await asyncio.sleep(0.05)


async def works_again(storage: SQLStorage, lease: Lease) -> None:
    """Nothing of the transaction is there, and the only connection serves."""
    assert await storage.get_history_count("i-1") == 0
    async with storage.transaction():
        assert await storage.append_history(STEP, lease=lease)
    assert await storage.get_history_count("i-1") == 1


async def step_again(storage: SQLStorage) -> None:
    await storage.append_history(HistoryEvent("i-1", "s:2", "ActivityCompleted", b"1"))


async def own_sql(storage: SQLStorage) -> None:
    await storage.conn().fetchval("SELECT 1")


NEXT: dict[str, Callable[[SQLStorage], Awaitable[object]]] = {
    "commit": lambda storage: storage.commit_transaction(),
    "operation": step_again,
    "own SQL": own_sql,
    "level": lambda storage: storage.begin_transaction(),
}


@pytest.mark.parametrize("then", NEXT.values(), ids=NEXT.keys())
async def test_idle_transaction_is_ended_and_its_row_unlocked(
    storage: SQLStorage, peer: SQLStorage, then: Callable[[SQLStorage], Awaitable[object]]
) -> None:
    lease = await leased(storage, "i-1")
    await storage.begin_transaction()
    await storage.append_history(STEP, lease=lease)
    assert await peer.try_acquire_lock("i-1", "w2", 30) is None
    successor = await taken_over(peer)
    with pytest.raises(DatabaseUnavailableError, match="rolled back"):
        await then(storage)
    await storage.rollback_transaction()
    await works_again(storage, successor)


async def test_error_of_a_frozen_transaction_names_the_timeout(
    storage: SQLStorage, place: Place, peer: SQLStorage
) -> None:
    lease = await leased(storage, "i-1")
    with pytest.raises(DatabaseUnavailableError, match=r"idle_transaction_timeout.* nothing was written"):
        async with storage.transaction():
            await storage.append_history(STEP, lease=lease)
            time.sleep(place.seconds * 1.5)
    await works_again(storage, await taken_over(peer))


async def test_work_on_the_native_connection_resets_the_idle_timeout(storage: SQLStorage, place: Place) -> None:
    """What is done there is not seen here, and the server knows better."""
    lease = await leased(storage, "i-1")
    async with storage.transaction() as conn:
        native = conn.native
        for _ in range(6):
            await asyncio.sleep(place.seconds / 3)
            await (native.execute if hasattr(native, "execute") else native.query)("SELECT 1")
        await storage.append_history(STEP, lease=lease)
    assert await storage.get_history_count("i-1") == 1


@pytest.mark.parametrize("frozen_after", [1, 2])
async def test_operation_ended_by_the_idle_timeout_is_retried(
    storage: SQLStorage, place: Place, frozen_after: int
) -> None:
    """Frozen between two statements, or between the last one and the commit."""
    lease = await leased(storage, "i-1")
    runs = 0

    def steps() -> Operation[int]:
        nonlocal runs
        runs += 1
        for n in (1, 2):
            yield from append(event_params(HistoryEvent("i-1", f"s:{n}", "StepDone")), lease)
            if runs == 1 and n == frozen_after:
                time.sleep(place.seconds * 1.5)
        return runs

    backend = storage._backend
    assert isinstance(backend, ServerBackend)
    assert await backend.write(Work(steps)) == 2
    found = await storage.get_instance("i-1")
    assert found is not None
    assert found.current_activity_id == "s:2"


class Clock:
    """Stands for `time` in the modules that measure pauses; the server has a clock of its own."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


async def test_operation_whose_pauses_are_short_is_not_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts from the last answer, not from the beginning."""
    clock, runs = Clock(), 0
    for module in (adapter, transaction, mysql_backend):
        monkeypatch.setattr(module, "time", clock)

    def steps() -> Operation[int]:
        nonlocal runs
        runs += 1
        for n in (1, 2, 3):
            yield from append(event_params(HistoryEvent("i-1", f"s:{n}", "StepDone")), lease)
            clock.now += 40
        return runs

    async with open_storage(f"{place.url}?idle_transaction_timeout=60") as storage:
        lease = await leased(storage, "i-1")
        assert await storage._backend.write(Work(steps)) == 1


async def test_idle_timeout_applies_to_its_own_session_only(
    storage: SQLStorage, peer: SQLStorage, place: Place
) -> None:
    """Neither to another storage nor, behind a pooler, to the next client of the server session."""
    async with storage.transaction() as conn:
        ours = await conn.fetchval(place.shown)
    theirs = await peer.db().fetchval(place.shown)
    assert ours in ("500ms", 1)
    assert theirs in ("0", 0)


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1e9"])
def test_idle_timeout_must_be_a_number_of_seconds(value: str) -> None:
    for scheme, parse in (("postgresql", postgres_url.parse), ("mysql", mysql_url.parse)):
        with pytest.raises(ConfigurationError, match="idle_transaction_timeout"):
            parse(f"{scheme}://u@h/d?idle_transaction_timeout={value}")


async def test_mysql_accepts_the_idle_timeout_and_mariadb_rounds_it_up(fresh_mysql_db: str) -> None:
    async with open_storage(f"{fresh_mysql_db}?idle_transaction_timeout=1.2") as storage:
        if "MariaDB" in str(await storage.db().fetchval("SELECT @@version")):
            assert await storage.db().fetchval("SELECT @@idle_transaction_timeout") == 2
        else:
            async with storage.transaction() as conn:
                time.sleep(2.5)
                assert await conn.fetchval("SELECT 1") == 1
