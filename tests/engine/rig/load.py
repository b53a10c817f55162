"""A crew under load that comes to harm, and what is wrong when all is over."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from perdure import Client
from tests.engine.rig.checker import Checker, read_rows
from tests.engine.rig.clocks import deafen
from tests.engine.rig.crew import Crew, until
from tests.engine.rig.driver import LANES, Driver
from tests.engine.rig.entries import entered, make_table
from tests.engine.rig.lateness import Lateness
from tests.engine.rig.nursery import WorkerSpec
from tests.support.storages import Database, storage_of

Harm = Callable[[Crew], Awaitable[None]]


async def under_load(
    database: Database, spec: WorkerSpec, chance: random.Random, harm: Harm, *, workers: int = 4, lanes: int = LANES
) -> tuple[Checker, dict[str, float]]:
    """Keep workers busy while harm is done, see every run to its end, and check; gives figures, too."""
    storage = await database.storage()
    await make_table(storage)
    async with Lateness.watched() as lateness, Client(spec.url) as client, Crew(spec, chance) as crew:
        if spec.deaf:
            deafen(storage_of(client))
        for _ in range(workers):
            await crew.hire()
        driver = Driver(client, chance, lanes)
        async with asyncio.TaskGroup() as group:
            group.create_task(driver.run())
            await harm(crew)
            driver.stopping.set()
    checker = Checker(await read_rows(storage), crew.effects.look())
    checker.rows.entries = await entered(storage)
    checker.check(driver.told)
    checker.check_resumed(crew.kills, lateness)
    return checker, {**checker.figures(), "calls_repeated": driver.told.retried}


async def worked(crew: Crew, count: int) -> None:
    """Until so many more activities were done."""
    before = _done(crew)
    await until(lambda: _done(crew) >= before + count, f"{count} more activities to be done")


def _done(crew: Crew) -> int:
    return sum(line.what == "end" for line in crew.effects.look())


async def working_again(crew: Crew) -> float:
    """Until an activity begins; gives how long that took."""
    since = time.monotonic()
    line = await crew.seen(lambda line: line.what == "begin" and line.at > since, "work to go on")
    return line.at - since
