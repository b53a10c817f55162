"""The limits of a worker: runs, activities and threads."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from perdure import App, Retry, activity, workflow
from tests.conftest import BackendDatabase
from tests.support.storages import Database

SOON = timedelta(seconds=60)
ONCE = Retry(attempts=1)
running = [0, 0]
together = [0, 0]


@pytest.fixture
async def sqlite(backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """A database that two apps can open."""
    async with backend_database("sqlite") as database:
        yield database


@activity(retry=ONCE)
async def crowded() -> None:
    running[0] += 1
    running[1] = max(running)
    await asyncio.sleep(0.01)
    running[0] -= 1


@workflow(name="limits.crowd")
async def crowd(count: int) -> None:
    await asyncio.gather(*(crowded() for _ in range(count)))


@pytest.mark.call("limits")
async def test_max_activities_limits_concurrent_activities(memory: Database) -> None:
    running[:] = [0, 0]
    async with App(memory.url, max_activities=3):
        for handle in [await crowd.start(6) for _ in range(3)]:
            await handle.result(SOON)
    assert running == [0, 3]


@pytest.mark.call("limits")
async def test_max_runs_limits_concurrent_runs(sqlite: Database) -> None:
    running[:] = [0, 0]
    async with App(sqlite.url, max_runs=4):
        handles = await asyncio.gather(*(crowd.start(1) for _ in range(20)))
        await asyncio.gather(*(handle.result(SOON) for handle in handles))
    assert running == [0, 4]


@activity(retry=Retry(attempts=1))
def in_a_thread() -> str:
    together[0] += 1
    together[1] = max(together)
    time.sleep(0.02)
    together[0] -= 1
    return threading.current_thread().name


@workflow(name="limits.threads")
async def in_threads(count: int) -> list[str]:
    return list(await asyncio.gather(*(in_a_thread() for _ in range(count))))


@pytest.mark.call("limits")
async def test_max_threads_limits_threads(database: Database) -> None:
    together[:] = [0, 0]
    async with App(database.url, max_threads=2):
        names = await (await in_threads.start(8)).result(SOON)
    assert len(set(names)) == 2
    assert together == [0, 2]
