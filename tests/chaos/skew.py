"""Skew and loss: worker clocks hours off and set back and forth, and every notification dropped."""

import random

from tests.chaos.rigs import Outcome, Rig, Round
from tests.engine.crashes.rig.databases import own_database
from tests.engine.crashes.rig.fork_server import WorkerSpec
from tests.engine.crashes.rig.load import under_load, worked
from tests.engine.crashes.rig.load_driver import CONCURRENCY
from tests.engine.crashes.rig.worker_pool import WorkerPool
from tests.support.storages import Database

WORKERS = 3
BUSY = 40  # executions an episode
OFF_SEC = 48 * 3600.0


async def play(round_: Round) -> Outcome:
    async with own_database(round_.backend, round_.folder) as database:
        return await mislead(database, round_)


async def mislead(database: Database, round_: Round, *, concurrency: int = CONCURRENCY) -> Outcome:
    """Let workers with wrong clocks take over from others whose clocks are wrong in another way."""
    done = 0

    async def replace_all(crew: WorkerPool) -> None:
        nonlocal done
        await worked(crew, BUSY)
        while done < round_.count:
            for pid in list(crew.alive):
                await crew.kill(pid)
                await crew.start_worker()
            await worked(crew, BUSY)
            done += 1

    spec = WorkerSpec(database.url, str(round_.folder), clock_off_sec=OFF_SEC, without_notifications=True)
    chance = random.Random(round_.seed)
    checker, figures = await under_load(database, spec, chance, replace_all, workers=WORKERS, concurrency=concurrency)
    return Outcome(done, checker.wrong, figures)


RIG = Rig("skew", "crews", {"sqlite": 50, "postgresql": 50, "mysql": 50}, 10, play)
