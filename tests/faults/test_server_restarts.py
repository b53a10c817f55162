"""A server is restarted or killed under load: no acknowledged write is lost, and the program continues."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from perdure.errors import CommitUnknownError, DatabaseUnavailableError, TransactionConflictError
from perdure.model.records import HistoryEvent, Lease
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import leased
from perdure.testing.servers import MySQLServer, PostgresServer, Server
from tests.support.databases import named_database
from tests.support.storages import server_database

WRITERS = 8


@pytest.fixture(scope="module", params=["postgresql", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    """A server of this module's own, which may be stopped."""
    with PostgresServer() if request.param == "postgresql" else MySQLServer() as server:
        yield request.param, server


@pytest.fixture
async def storage(server: tuple[str, Server]) -> AsyncIterator[SQLStorage]:
    kind, running = server
    async with server_database(kind, await named_database(running.url, "restarted")) as database:
        yield await database.storage()


class Log:
    """The writes of one writer: acknowledged, or unknown."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.unknown: list[str] = []
        self.progress = asyncio.Event()


async def write(storage: SQLStorage, lease: Lease, log: Log, stop: asyncio.Event) -> None:
    n = 0
    while not stop.is_set():
        step, n = f"{lease.instance_id}:{n}", n + 1
        try:
            await storage.append_history(HistoryEvent(lease.instance_id, step, "ActivityCompleted", b"1"), lease=lease)
        except CommitUnknownError:
            log.unknown.append(step)
        except DatabaseUnavailableError:
            continue  # said to have written nothing
        else:
            log.acknowledged.append(step)
            log.progress.set()


async def progress(log: Log) -> None:
    """Wait until something new is acknowledged."""
    log.progress.clear()
    await asyncio.wait_for(log.progress.wait(), 30)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_server_restart_under_load_loses_no_acknowledged_write(
    server: tuple[str, Server], storage: SQLStorage, how: str
) -> None:
    log, stop = Log(), asyncio.Event()
    leases = [await leased(storage, f"i-{n}", timeout_sec=600) for n in range(WRITERS)]
    writers = [asyncio.create_task(write(storage, lease, log, stop)) for lease in leases]
    for _ in range(2):
        await progress(log)
        if how == "kill":
            await asyncio.to_thread(server[1].kill)
            await asyncio.to_thread(server[1].start)
        else:
            await asyncio.to_thread(server[1].restart)
        await progress(log)
    stop.set()
    await asyncio.wait_for(asyncio.gather(*writers), 40)
    stored: set[str] = set()
    for lease in leases:
        assert await storage.get_history_count(lease.instance_id) < 100_000
        after = 0
        while True:
            events, more = await storage.get_history_paginated(lease.instance_id, after)
            stored |= {event.activity_id for event in events}
            if not more:
                break
            after = events[-1].id
    lost = [(place, step) for place, step in enumerate(log.acknowledged) if step not in stored]
    assert not lost, f"{len(lost)} of {len(log.acknowledged)} are lost: {lost[:20]}; unknown: {log.unknown[:20]}"
    assert stored <= set(log.acknowledged) | set(log.unknown)
    assert len(log.acknowledged) == len(set(log.acknowledged))


async def test_server_restart_fails_and_rolls_back_an_open_transaction(
    server: tuple[str, Server], storage: SQLStorage
) -> None:
    lease = await leased(storage, "i-1", timeout_sec=600)
    with pytest.raises((DatabaseUnavailableError, TransactionConflictError)):
        async with storage.transaction():
            await storage.append_history(HistoryEvent("i-1", "a", "ActivityCompleted", b"1"), lease=lease)
            await asyncio.to_thread(server[1].kill)
            await asyncio.to_thread(server[1].start)
            await storage.append_history(HistoryEvent("i-1", "b", "ActivityCompleted", b"1"), lease=lease)
    assert not storage.in_transaction()
    assert await storage.get_history_count("i-1") == 0
    await storage.append_history(HistoryEvent("i-1", "c", "ActivityCompleted", b"1"), lease=lease)


async def test_error_for_an_unreachable_server_is_one_sentence(
    server: tuple[str, Server], storage: SQLStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.database.backends.server.retries.RETRY_SEC", 0.5)
    await asyncio.to_thread(server[1].kill)
    try:
        with pytest.raises(DatabaseUnavailableError):
            await storage.get_instance("i-1")
    finally:
        await asyncio.to_thread(server[1].start)
    monkeypatch.undo()
    assert await storage.get_instance("i-1") is None
