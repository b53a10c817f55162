"""The database goes away under load, twice: nothing acknowledged is lost, and all runs finish by themselves."""

import asyncio
import random
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from perdure import Client
from perdure.testing.servers import MySQLServer, PostgresServer
from tests.engine.rig.checker import Checker, all_right, read_rows
from tests.engine.rig.crew import Crew, until
from tests.engine.rig.driver import Driver
from tests.engine.rig.nursery import WorkerSpec
from tests.servers.databases import named_database
from tests.storages import Database

OUTAGES = 2
AWAY_SEC = 2.0  # longer than a lease
WORKERS = 3
BUSY = 60  # executions between two outages

Strike = Callable[[], Awaitable[None]]


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])
async def test_restarts(backend: str, tmp_path: Path) -> None:
    async with fragile(backend, tmp_path) as (database, strike):
        chance = random.Random(secrets.randbits(32))
        spec = WorkerSpec(database.url, str(tmp_path))
        async with Client(database.url) as client, Crew(spec, chance) as crew:
            for _ in range(WORKERS):
                await crew.hire()
            driver = Driver(client, chance)
            async with asyncio.TaskGroup() as group:
                group.create_task(driver.run())
                back = [await outage(crew, strike) for _ in range(OUTAGES)]
                driver.stopping.set()
        checker = Checker(await read_rows(await database.storage()), crew.effects.look())
        checker.check(driver.told)
    print(f"{backend}: {checker.figures()}; {driver.told.retried} calls repeated; work again after", *back)
    all_right(checker.wrong)


async def outage(crew: Crew, strike: Strike) -> str:
    """Strike once there was work, and wait for more; gives how long that took once the database was back."""
    await worked(crew)
    await strike()
    back = time.monotonic()
    await until(lambda: any(line.what == "begin" and line.at > back for line in crew.effects.look()), "work again")
    took = next(line.at for line in crew.effects.lines if line.what == "begin" and line.at > back) - back
    await worked(crew)
    return f"{took:.2f} s"


async def worked(crew: Crew) -> None:
    """Until so many more activities were done."""
    before = done(crew)
    await until(lambda: done(crew) >= before + BUSY, f"{BUSY} more activities to be done")


def done(crew: Crew) -> int:
    return sum(line.what == "end" for line in crew.effects.look())


@asynccontextmanager
async def fragile(backend: str, folder: Path) -> AsyncIterator[tuple[Database, Strike]]:
    """A migrated database of this test's own, and what makes it go away and come back."""
    if backend == "sqlite":
        path = folder / "fragile.db"
        async with _opened(Database(backend, f"sqlite:///{path}")) as database:
            yield database, lambda: asyncio.to_thread(_lock, path)
        return
    with PostgresServer() if backend == "postgresql" else MySQLServer() as server:
        pauses = iter((0.0, AWAY_SEC))  # once leases survive it, once they do not

        async def crash() -> None:
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(next(pauses))
            await asyncio.to_thread(server.start)

        async with _opened(Database(backend, await named_database(server.url, "fragile"))) as database:
            yield database, crash


@asynccontextmanager
async def _opened(database: Database) -> AsyncIterator[Database]:
    await database.storage()
    try:
        yield database
    finally:
        await database.close()


def _lock(path: Path) -> None:
    """A SQLite file has no server to restart: a stranger keeps everybody from writing."""
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        time.sleep(AWAY_SEC)
        stranger.execute("ROLLBACK")
