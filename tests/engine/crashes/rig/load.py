"""A pool of workers under load while faults are injected, and the check at the end."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from perdure import Client
from tests.engine.crashes.rig.checker import Checker, read_rows
from tests.engine.crashes.rig.clocks import block_notifications
from tests.engine.crashes.rig.effect_table import entered, make_table
from tests.engine.crashes.rig.fork_server import WorkerSpec
from tests.engine.crashes.rig.load_driver import CONCURRENCY, LoadDriver
from tests.engine.crashes.rig.scheduling_delay import Lateness
from tests.engine.crashes.rig.worker_pool import WorkerPool, until
from tests.support.storages import Database, storage_of

Harm = Callable[[WorkerPool], Awaitable[None]]


async def under_load(
    database: Database,
    spec: WorkerSpec,
    chance: random.Random,
    harm: Harm,
    *,
    workers: int = 4,
    concurrency: int = CONCURRENCY,
) -> tuple[Checker, dict[str, float]]:
    """Keep workers busy while harm is done, wait for the end of every run, and return the checker and figures."""
    storage = await database.storage()
    await make_table(storage)
    async with Lateness.watched() as lateness, Client(spec.url) as client, WorkerPool(spec, chance) as pool:
        if spec.without_notifications:
            block_notifications(storage_of(client))
        for _ in range(workers):
            await pool.start_worker()
        driver = LoadDriver(client, chance, concurrency)
        async with asyncio.TaskGroup() as group:
            group.create_task(driver.run())
            await harm(pool)
            driver.stopping.set()
    checker = Checker(await read_rows(storage), pool.effects.look())
    checker.rows.entries = await entered(storage)
    checker.check(driver.observed)
    checker.check_resumed(pool.kills, lateness)
    return checker, {**checker.figures(), "calls_repeated": driver.observed.retried}


async def worked(pool: WorkerPool, count: int) -> None:
    """Until so many more activities were done."""
    before = _done(pool)
    await until(lambda: _done(pool) >= before + count, f"{count} more activities to be done")


def _done(pool: WorkerPool) -> int:
    return sum(line.what == "end" for line in pool.effects.look())


async def working_again(pool: WorkerPool) -> float:
    """Wait until an activity begins, and return how long that took."""
    since = time.monotonic()
    line = await pool.seen(lambda line: line.what == "begin" and line.at > since, "work to continue")
    return line.at - since
