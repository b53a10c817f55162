"""Workers killed at random moments, on every database: nothing acknowledged is lost, nothing recorded is done again."""

import asyncio
import os
import random
import secrets
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from perdure import Client, Handle
from perdure.model.records import WorkflowInstance
from tests.conftest import BackendDatabase
from tests.engine.rig.checker import Checker, all_right, read_rows
from tests.engine.rig.crew import Crew, until
from tests.engine.rig.driver import Driver
from tests.engine.rig.nursery import LEASE_SEC, WorkerSpec
from tests.engine.rig.workflows import GATES, Account, detained

KILLS = int(os.environ.get("PERDURE_KILLS", "50"))
SEED = int(os.environ.get("PERDURE_SEED", "0")) or secrets.randbelow(1 << 32)
WORKERS = 4


async def storm(crew: Crew, kills: int) -> None:
    """Kill one after the other, at work or while it begins, and put another in its place; one at least is at work."""
    while len(crew.kills) < kills:
        await crew.until_ready(WORKERS - 1)
        await asyncio.sleep(crew.chance.uniform(0.02, 0.2))
        await crew.kill(crew.chance.choice(crew.alive))
        await crew.hire()


@pytest.mark.timeout(120 + KILLS)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])
async def test_kills(backend: str, backend_database: BackendDatabase, tmp_path: Path) -> None:
    command = f"python -m pytest 'tests/engine/test_kills.py::test_kills[{backend}]'"
    print(f"to repeat: PERDURE_SEED={SEED} PERDURE_KILLS={KILLS} {command}")
    chance = random.Random(SEED)
    async with backend_database(backend) as database:
        spec = WorkerSpec(database.url, str(tmp_path))
        async with Client(database.url) as client, Crew(spec, chance) as crew:
            for _ in range(WORKERS):
                await crew.hire()
            began = time.monotonic()
            driver = Driver(client, chance)
            async with asyncio.TaskGroup() as group:
                group.create_task(driver.run())
                await storm(crew, KILLS)
                driver.stopping.set()
            took = time.monotonic() - began
        checker = Checker(await read_rows(await database.storage()), crew.effects.look())
        checker.check(driver.told)
        checker.check_resumed(crew.kills)
        checker.check_undisturbed(crew.kills)
    print(f"{backend}: {len(crew.kills)} kills in {took:.1f} s, {checker.figures()}")
    assert checker.resumed_sec, "no kill interrupted anything"
    all_right(checker.wrong)


async def test_a_worker_keeps_what_it_took_over(tmp_path: Path) -> None:
    """Leases that were taken over and others are renewed side by side, and nothing is begun a second time."""
    url = f"sqlite:///{tmp_path}/perdure.db"
    async with Client(url), Crew(WorkerSpec(url, str(tmp_path)), random.Random(SEED)) as crew:
        GATES.folder = tmp_path
        first = await detained.start(["gate"], "alone", id="first")
        killed = await crew.hire()
        await crew.seen(lambda line: line.step == "2:held", "the first run to be inside")
        await crew.kill(killed)
        heir = await crew.hire()
        await crew.seen(lambda line: (line.pid, line.step) == (heir, "2:held"), "the first run to be inside again")
        second = await detained.start(["gate"], "alone", id="second")
        await crew.seen(lambda line: (line.run, line.step) == ("second", "2:held"), "the second run to be inside")
        rows = [await handle.describe() for handle in (first, second)]

        async def renewed() -> bool:
            return all([await _expiry(handle) > _later(row) for handle, row in zip((first, second), rows, strict=True)])

        await until(renewed, "leases to be kept for long")
        assert [await _token(handle) for handle in (first, second)] == [row.lock_token for row in rows]
        GATES.open("gate")
        await first.result(30)
        await second.result(30)
        begun = [line for line in crew.effects.look() if (line.what, line.step, line.pid) == ("begin", "2:held", heir)]
        assert len(begun) == 2


async def _expiry(handle: Handle[Account]) -> datetime:
    expires_at = (await handle.describe()).lock_expires_at
    assert expires_at is not None, "given up"
    return expires_at


async def _token(handle: Handle[Account]) -> int:
    return (await handle.describe()).lock_token


def _later(row: WorkflowInstance) -> datetime:
    assert row.lock_expires_at is not None
    return row.lock_expires_at + timedelta(seconds=2 * LEASE_SEC)
