"""Workers that are stopped beyond their lease and resumed after another worker took over write nothing."""

import random
import secrets
from pathlib import Path

import pytest

from perdure import Client, RunHandle
from tests.chaos.rigs import Round
from tests.chaos.zombies import SOON, TRIES, begun_by_zombies, rise
from tests.conftest import BackendDatabase
from tests.engine.crashes.rig.checker import all_right
from tests.engine.crashes.rig.dump import changes, dump
from tests.engine.crashes.rig.fork_server import WorkerSpec
from tests.engine.crashes.rig.locks import are_held
from tests.engine.crashes.rig.worker_pool import WorkerPool
from tests.engine.crashes.rig.workflows import PROBE, Account, pausing
from tests.support.storages import Database

ZOMBIES = 5


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.guarantee(2)
async def test_zombie_workers_write_nothing(backend: str, backend_database: BackendDatabase, tmp_path: Path) -> None:
    """A small round of the chaos room's rig."""
    async with backend_database(backend) as database:
        outcome = await rise(database, Round(backend, secrets.randbits(32), ZOMBIES, tmp_path))
    all_right(outcome.wrong)
    assert outcome.done == ZOMBIES


@pytest.mark.guarantee(2)
async def test_zombie_worker_starts_no_activity(
    backend: str, backend_database: BackendDatabase, tmp_path: Path
) -> None:
    """Stopped in a pause that is kept in memory, with nothing to write: only the clock can stop it."""
    async with backend_database(backend) as database:
        spec = WorkerSpec(database.url, str(tmp_path))
        storage = await database.storage()
        async with Client(database.url), WorkerPool(spec, random.Random(secrets.randbits(32))) as pool:
            handle, stopped = await stop_in_pause(pool, database)
            (zombie,) = stopped
            await pool.start_worker()
            assert (await handle.result(SOON)).value == [2]
            before = await dump(storage, [handle.id])
            await pool.fork_server.resume(zombie)
            await (await PROBE[0].options(id="probe").start()).result(SOON)
            wrong = changes(before, await dump(storage, [handle.id]))
        lines = [line for line in pool.effects.look() if line.run == handle.id]
        all_right([*wrong, *begun_by_zombies(lines, stopped)])


async def stop_in_pause(pool: WorkerPool, database: Database) -> tuple[RunHandle[Account], dict[int, float]]:
    """A run whose worker was stopped after its first attempt's failure was recorded, and before its second attempt."""
    storage = await database.storage()
    zombie = await pool.start_worker(probe=0)
    for number in range(TRIES):
        handle = await pausing.options(id=f"pausing-{number}").start()
        retrying = ("hook.StepRetrying", handle.id, "1:flaky_briefly")
        await pool.seen(
            lambda line, retrying=retrying: (line.what, line.run, line.step) == retrying,  # type: ignore[misc]
            "a failure to be recorded",
        )
        stopped = {zombie: await pool.fork_server.stop(zombie)}
        begun = [line for line in pool.effects.look() if line.what == "begin" and line.run == handle.id]
        if len(begun) == 1 and not await are_held(database, storage):
            return handle, stopped
        await pool.fork_server.resume(zombie)
    raise AssertionError(f"of {TRIES} pauses none was met")
