"""Workers are killed at random moments: nothing acknowledged is lost, and no recorded step executes again."""

import random
import secrets
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from perdure import Client, RunHandle
from perdure.model.records import WorkflowInstance
from tests.chaos.kills import storm
from tests.chaos.rigs import Round
from tests.conftest import BackendDatabase
from tests.engine.crashes.rig.checker import all_right
from tests.engine.crashes.rig.fork_server import LEASE_SEC, WorkerSpec
from tests.engine.crashes.rig.worker_pool import WorkerPool, until
from tests.engine.crashes.rig.workflows import GATES, Account, detained
from tests.engine.waiting import row_of

KILLS = 16
SEED = secrets.randbelow(1 << 32)


@pytest.mark.guarantee(3)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])
async def test_killed_workers_lose_nothing(backend: str, backend_database: BackendDatabase, tmp_path: Path) -> None:
    """A round of the chaos room's rig, which has no end of them."""
    print(f"to repeat: python -m tests.chaos --rig kills --database {backend} --seed {SEED} --count {KILLS}")
    async with backend_database(backend) as database:
        outcome = await storm(database, Round(backend, SEED, KILLS, tmp_path))
    print(backend, outcome.figures)
    all_right(outcome.wrong)
    assert outcome.done == KILLS
    assert outcome.figures["entries"] > 0


async def test_worker_keeps_the_runs_it_took_over(tmp_path: Path) -> None:
    """Leases that were taken over and others are renewed side by side, and nothing is begun a second time."""
    url = f"sqlite:///{tmp_path}/perdure.db"
    async with Client(url), WorkerPool(WorkerSpec(url, str(tmp_path)), random.Random(SEED)) as pool:
        GATES.folder = tmp_path
        first = await detained.options(id="first").start(["gate"], "alone")
        killed = await pool.start_worker()
        await pool.seen(lambda line: line.step == "2:held", "the first run to be inside")
        await pool.kill(killed)
        heir = await pool.start_worker()
        await pool.seen(lambda line: (line.pid, line.step) == (heir, "2:held"), "the first run to be inside again")
        second = await detained.options(id="second").start(["gate"], "alone")
        await pool.seen(lambda line: (line.run, line.step) == ("second", "2:held"), "the second run to be inside")
        rows = [await row_of(handle) for handle in (first, second)]

        async def renewed() -> bool:
            return all([await _expiry(handle) > _later(row) for handle, row in zip((first, second), rows, strict=True)])

        await until(renewed, "leases to be kept for long")
        assert [await _token(handle) for handle in (first, second)] == [row.lock_token for row in rows]
        GATES.open("gate")
        await first.result(30)
        await second.result(30)
        begun = [line for line in pool.effects.look() if (line.what, line.step, line.pid) == ("begin", "2:held", heir)]
        assert len(begun) == 2


async def _expiry(handle: RunHandle[Account]) -> datetime:
    expires_at = (await row_of(handle)).lock_expires_at
    assert expires_at is not None, "given up"
    return expires_at


async def _token(handle: RunHandle[Account]) -> int:
    return (await row_of(handle)).lock_token


def _later(row: WorkflowInstance) -> datetime:
    assert row.lock_expires_at is not None
    return row.lock_expires_at + timedelta(seconds=2 * LEASE_SEC)
