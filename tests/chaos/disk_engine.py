"""Workers on a disk that is full for some time: every run ends, and no worker dies."""

import asyncio
import random
import sqlite3
import tempfile
from contextlib import closing

from tests.chaos.disk_space import Space
from tests.chaos.rigs import Outcome
from tests.engine.crashes.rig.databases import opened
from tests.engine.crashes.rig.fork_server import LEASE_SEC, WorkerSpec
from tests.engine.crashes.rig.load import under_load, worked, working_again
from tests.engine.crashes.rig.worker_pool import WorkerPool, until
from tests.support.storages import Database

WORKERS, CONCURRENCY = 2, 9
BUSY = 15  # executions before the disk is full
LEFT_MAX = 64 << 10
TROUBLES = 1  # a worker logs an outage once
STAY_SEC = 2 * LEASE_SEC  # at most: leases, which no worker can renew, survive it or do not
PATIENCE_SEC = 60.0  # less than a test may take


async def engine(url: str, space: Space, outcome: Outcome, chance: random.Random, count: int) -> None:
    """Fill the disk so many times under workers at work; what they say of it is kept elsewhere."""
    again = [0.0]
    with tempfile.TemporaryDirectory(prefix="perdure-disk-", dir="/tmp") as folder:
        async with opened(Database("sqlite", url)) as database:

            async def harm(crew: WorkerPool) -> None:
                for _ in range(count):
                    await worked(crew, BUSY)
                    path, left = url.removeprefix("sqlite:///"), chance.randrange(LEFT_MAX)
                    before = len(crew.troubles())  # a worker may notice it at once
                    await asyncio.to_thread(_fill, space, path, left)
                    await _felt(crew, before)
                    await asyncio.sleep(chance.choice((0.0, chance.uniform(0, STAY_SEC))))
                    space.free()
                    again.append(await working_again(crew))
                    outcome.done += 1
                for pid in crew.alive:  # neither could be done to a process that has ended
                    await crew.fork_server.stop(pid)
                    await crew.fork_server.resume(pid)

            spec = WorkerSpec(url, folder)
            checker, figures = await under_load(database, spec, chance, harm, workers=WORKERS, concurrency=CONCURRENCY)
        outcome.wrong += checker.wrong
        outcome.figures = {"acknowledged": len(checker.rows.instances), **figures}
        outcome.figures["work_again_max_sec"] = round(max(again), 2)


def _fill(space: Space, path: str, left: int) -> None:
    """The log is emptied before, or there would be room in it for a long while."""
    with closing(sqlite3.connect(path, timeout=PATIENCE_SEC)) as stranger:
        stranger.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    space.fill(left)


async def _felt(crew: WorkerPool, before: int) -> None:
    """Wait until a worker has logged that the disk is full, after so many other lines."""

    def is_felt() -> bool:
        return sum("full" in line for line in crew.troubles()[before:]) >= TROUBLES

    await until(is_felt, "the disk to be full", PATIENCE_SEC)
