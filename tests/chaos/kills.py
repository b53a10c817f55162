"""Kill storm: worker processes killed at random moments, at work or while they begin."""

import asyncio
import random

from tests.chaos.rigs import Outcome, Rig, Round
from tests.engine.crashes.rig.databases import own_database
from tests.engine.crashes.rig.fork_server import WorkerSpec
from tests.engine.crashes.rig.load import under_load
from tests.engine.crashes.rig.worker_pool import WorkerPool
from tests.support.storages import Database

WORKERS = 4
ENOUGH = 100  # fewer kills may all come between two activities


async def play(round_: Round) -> Outcome:
    async with own_database(round_.backend, round_.folder) as database:
        return await storm(database, round_)


async def storm(database: Database, round_: Round) -> Outcome:
    """Kill one after the other and put another in its place; one at least is at work."""

    async def kill(crew: WorkerPool) -> None:
        while len(crew.kills) < round_.count:
            await crew.until_ready(WORKERS - 1)
            await asyncio.sleep(crew.chance.uniform(0.02, 0.2))
            await crew.kill(crew.chance.choice(crew.alive))
            await crew.start_worker()
        kills.update(crew.kills)

    kills: dict[int, float] = {}
    spec = WorkerSpec(database.url, str(round_.folder))
    checker, figures = await under_load(database, spec, random.Random(round_.seed), kill, workers=WORKERS)
    checker.check_undisturbed(kills)
    if round_.count >= ENOUGH:
        checker.expect(bool(checker.resumed_sec), "no kill interrupted anything")
    return Outcome(len(kills), checker.wrong, figures)


RIG = Rig("kills", "kills", {"sqlite": 2000, "postgresql": 2000, "mysql": 2000}, 100, play)
