"""The short form of the failover rig: a primary and its standby, on the real servers."""

import asyncio
import random
import secrets
import time
from pathlib import Path

import pytest

from perdure import Client
from tests.chaos.clusters import Cluster, Death
from tests.chaos.clusters_pairs import CarelessPair, MariaDBPair, PostgresPair
from tests.chaos.failover import fail_over, started
from tests.chaos.rigs import Round
from tests.engine.crashes.rig import workflows as w
from tests.engine.crashes.rig.checker import Checker, all_right, read_rows
from tests.engine.crashes.rig.databases import opened
from tests.engine.crashes.rig.fork_server import WorkerSpec
from tests.engine.crashes.rig.load import worked
from tests.engine.crashes.rig.load_driver import LoadDriver
from tests.engine.crashes.rig.worker_pool import WorkerPool
from tests.support.storages import Database

STEPS = 60


@pytest.mark.parametrize(
    ("pair", "deaths"),
    [(PostgresPair, [Death.SERVER]), (MariaDBPair, [Death.DEMOTION, Death.SERVER])],
    ids=["postgresql", "mysql"],
)
async def test_failover_loses_no_acknowledged_write(pair: type[Cluster], deaths: list[Death], tmp_path: Path) -> None:
    round_ = Round(pair.__name__, secrets.randbits(32), len(deaths), tmp_path)
    async with started(pair()) as cluster:
        outcome = await fail_over(cluster, round_, deaths, work=20, concurrency=6)
    all_right(outcome.wrong)
    assert outcome.done == len(deaths)


async def test_rig_detects_writes_lost_by_an_asynchronous_standby(tmp_path: Path) -> None:
    """The rig can fail: steps and a start that were acknowledged are not there after this failover."""
    pair, chance = CarelessPair(), random.Random(1)
    async with started(pair), opened(Database("postgresql", pair.url)) as database:
        storage = await database.storage()
        async with Client(pair.url) as client, WorkerPool(WorkerSpec(pair.url, str(tmp_path)), chance) as crew:
            driver = LoadDriver(client, chance)
            worker = await crew.start_worker()
            kept = await driver._start(w.sequence, [*(2 * number for number in range(STEPS)), 3 * STEPS], STEPS)
            await worked(crew, 5)
            await asyncio.to_thread(pair.fall_behind)
            behind = time.monotonic()
            lost = await driver._start(w.sequence, None, STEPS)
            await crew.seen(
                lambda line: line.what == "hook.StepCompleted" and line.run == kept.id and line.at > behind, "it"
            )
            await crew.kill(worker)  # it would continue with what it remembers, and leave a gap in the history
            await asyncio.to_thread(pair.kill_primary, Death.SERVER)
            await asyncio.to_thread(pair.replace)
            await crew.start_worker()
            await driver._finish(kept)
        checker = Checker(await read_rows(storage), crew.effects.look())
        checker.check(driver.observed)
    assert f"lost: {{{lost.id!r}}}" in checker.wrong
    assert any(kept.id in each and "though its result was recorded" in each for each in checker.wrong), checker.wrong
