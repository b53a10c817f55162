"""Database nemesis: the server crashes under load, ends sessions, has no connections left, takes no writes.

A SQLite file has no server: there a stranger locks it, or dies while writing to it.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from tests.chaos.rigs import Outcome, Rig, Round
from tests.engine.crashes.rig.databases import own_database, own_server, plain_user
from tests.engine.crashes.rig.fork_server import WorkerSpec
from tests.engine.crashes.rig.load import under_load, worked, working_again
from tests.engine.crashes.rig.load_driver import CONCURRENCY
from tests.engine.crashes.rig.nemesis import FileNemesis, MySQLNemesis, PostgresNemesis, ServerNemesis, Strike
from tests.engine.crashes.rig.worker_pool import WorkerPool
from tests.support.storages import Database

WORKERS = 3
BUSY = 20  # executions between two strikes
FEW = {"max_connections": 80}

Strikes = Mapping[str, Strike]


async def play(round_: Round) -> Outcome:
    """Play as many crashes as requested, sometimes with another fault in between."""
    chance = random.Random(round_.seed)
    async with fragile(round_) as (database, crashes, others):
        plan = [chance.choice(list(crashes)) for _ in range(round_.count)]
        between = [chance.choice(list(others)) for _ in range(round_.count // 4)] if others else []
        for name in between:
            plan.insert(chance.randint(0, len(plan)), name)
        outcome = await strike(database, round_, {**crashes, **others}, plan)
    outcome.done -= len(between)
    return outcome


async def strike(
    database: Database, round_: Round, strikes: Strikes, plan: Sequence[str], *, concurrency: int = CONCURRENCY
) -> Outcome:
    """Let the database be struck in each way of the plan; there is always work again."""
    chance, struck, again = random.Random(round_.seed), Counter[str](), [0.0]

    async def follow(crew: WorkerPool) -> None:
        for name in plan:
            await worked(crew, BUSY)
            await strikes[name]()
            again.append(await working_again(crew))
            struck[name] += 1

    spec = WorkerSpec(database.url, str(round_.folder))
    checker, figures = await under_load(database, spec, chance, follow, workers=WORKERS, concurrency=concurrency)
    return Outcome(struck.total(), checker.wrong, {**figures, **struck, "work_again_max_sec": round(max(again), 2)})


@asynccontextmanager
async def fragile(round_: Round) -> AsyncIterator[tuple[Database, Strikes, Strikes]]:
    """A database of the round's own, with what can befall it: what is counted, and what comes in between."""
    chance = random.Random(round_.seed)
    if round_.backend == "sqlite":
        async with own_database("sqlite", round_.folder) as database:
            file = FileNemesis(round_.folder / "perdure.db", chance)
            yield database, {"locked": file.lock, "writers killed": file.kill_writer}, {}
        return
    async with (
        own_server(round_.backend, FEW) as server,
        own_database(round_.backend, round_.folder, server) as database,
    ):
        nemesis: ServerNemesis
        if round_.backend == "mysql":
            nemesis, database.url = MySQLNemesis(server, chance), await plain_user(database.url)
        else:
            nemesis = PostgresNemesis(server, chance)
        yield database, {"crashes": nemesis.crash}, nemesis.strikes()


RIG = Rig("crashes", "crashes", {"sqlite": 200, "postgresql": 200, "mysql": 200}, 20, play)
