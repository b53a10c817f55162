"""Workers stopped inside activities beyond their lease, and woken when others have taken over: they write nothing."""

import asyncio
import random
import secrets
from pathlib import Path

import pytest

from perdure import Client, Handle
from tests.conftest import BackendDatabase
from tests.engine.rig.checker import Checker, all_right, read_rows
from tests.engine.rig.crew import Crew, until
from tests.engine.rig.driver import Told
from tests.engine.rig.dump import changes, dump
from tests.engine.rig.effects import Line
from tests.engine.rig.locks import are_held
from tests.engine.rig.nursery import WorkerSpec
from tests.engine.rig.workflows import GATES, PROBE, PROBES, Account, detained, pausing
from tests.storages import Database

KINDS = {"alone": [2, 7, 4], "threads": [2, 8, 4], "branches": [2, 7, 8, 8, 4]}
RUNS = [(kind, f"{kind}-{zombie}") for zombie in range(PROBES) for kind in (*KINDS, "twice")]
SOON = 30
TRIES = 20


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_zombies(backend: str, backend_database: BackendDatabase, tmp_path: Path) -> None:
    """Five workers, each inside four runs: of three another worker sees the end, in the fourth it is still at work."""
    async with backend_database(backend) as database:
        spec = WorkerSpec(database.url, str(tmp_path))
        storage = await database.storage()
        async with Client(database.url), Crew(spec, random.Random(secrets.randbits(32))) as crew:
            GATES.folder = tmp_path
            handles = await detain(crew)
            zombies = list(crew.alive)
            stopped = await stop(crew, database)
            inside_of = interrupted(crew)
            assert {line.pid for line in inside_of} == set(zombies)
            told = await take_over(crew, handles)
            before = await dump(storage, handles)

            for pid in zombies:
                await crew.nursery.go_on(pid)
            await all_awake(crew, inside_of)
            all_right(changes(before, await dump(storage, handles)))

            GATES.open("second")
            for run, handle in handles.items():
                told.results[run] = told.results.get(run) or await handle.result(SOON)
        rows = await read_rows(storage)
        checker = Checker(rows, [line for line in crew.effects.look() if line.run in handles])
        checker.rows.instances = {run: row for run, row in rows.instances.items() if run in handles}
        checker.rows.history = {run: rows.history[run] for run in handles}
        checker.check_runs(told)
        checker.check_histories(told)
        checker.check_steps()
        checker.check_fences()
        checker.wrong += begun_by_zombies(crew.effects.lines, stopped, set(handles))
        all_right(checker.wrong)
    print(f"{backend}: {len(zombies)} zombies inside {len(handles)} runs, no row changed")


async def test_a_zombie_begins_nothing(backend: str, backend_database: BackendDatabase, tmp_path: Path) -> None:
    """Stopped in a pause that is kept in memory, with nothing to write: only the clock can keep it from going on."""
    async with backend_database(backend) as database:
        spec = WorkerSpec(database.url, str(tmp_path))
        storage = await database.storage()
        async with Client(database.url), Crew(spec, random.Random(secrets.randbits(32))) as crew:
            handle, stopped = await stop_in_pause(crew, database)
            (zombie,) = stopped
            await crew.hire()
            assert (await handle.result(SOON)).value == [2]
            before = await dump(storage, [handle.id])
            await crew.nursery.go_on(zombie)
            await (await PROBE[0].start(id="probe")).result(SOON)
            wrong = changes(before, await dump(storage, [handle.id]))
        all_right([*wrong, *begun_by_zombies(crew.effects.look(), stopped, {handle.id})])


async def stop_in_pause(crew: Crew, database: Database) -> tuple[Handle[Account], dict[int, float]]:
    """A run whose worker was stopped after its first attempt's failure was recorded, and before its second attempt."""
    storage = await database.storage()
    zombie = await crew.hire(probe=0)
    for number in range(TRIES):
        handle = await pausing.start(id=f"pausing-{number}")
        told = ("told.step", handle.id, "1:flaky_briefly#1")
        await crew.seen(lambda line, told=told: (line.what, line.run, line.step) == told, "a failure to be recorded")  # type: ignore[misc]
        stopped = {zombie: await crew.nursery.stop(zombie)}
        begun = [line for line in crew.effects.look() if line.what == "begin" and line.run == handle.id]
        if len(begun) == 1 and not await are_held(database, storage):
            return handle, stopped
        await crew.nursery.go_on(zombie)
    raise AssertionError(f"of {TRIES} pauses none was met")


async def detain(crew: Crew) -> dict[str, Handle[Account]]:
    """Start workers that have room for four runs each, and runs that stay inside an activity."""
    handles = {}
    for kind, run in RUNS:
        gates = ["first", "second"] if kind == "twice" else ["first"]
        handles[run] = await detained.start(gates, "alone" if kind == "twice" else kind, id=run)
    for number in range(PROBES):
        await crew.hire(max_runs=len(RUNS) // PROBES, probe=number)
    await until(lambda: inside(crew) == set(handles), "all runs to be inside their activity")
    return handles


def inside(crew: Crew, fence_over: int = 0) -> set[str]:
    """Runs that are inside an activity that waits for a gate: in all of them at once, where there are several."""
    lines = [line for line in crew.effects.look() if line.what == "begin" and line.fence > fence_over]
    held = {line.run for line in lines if ":held" in line.step}
    in_threads = {line.run for line in lines if ":thread_held" in line.step}
    return {run for kind, run in RUNS if _is_inside(kind, run in held, run in in_threads)}


def _is_inside(kind: str, held: bool, in_thread: bool) -> bool:
    return {"threads": in_thread, "branches": held and in_thread}.get(kind, held)


async def stop(crew: Crew, database: Database) -> dict[int, float]:
    """Stop all workers at a moment when none of them has a transaction open; gives when each was stopped."""
    storage = await database.storage()
    for _ in range(TRIES):
        await asyncio.sleep(crew.chance.uniform(0, 0.3))  # any moment is as good
        stopped = {pid: await crew.nursery.stop(pid) for pid in crew.alive}
        if not await are_held(database, storage):
            return stopped
        for pid in crew.alive:
            await crew.nursery.go_on(pid)
    raise AssertionError(f"of {TRIES} moments none was free of transactions")


async def take_over(crew: Crew, handles: dict[str, Handle[Account]]) -> Told:
    """Open the first gate, and let another worker do what it can; gives what it did."""
    await crew.hire()
    GATES.open("first")
    told = Told(expected=dict.fromkeys(handles), started=list(handles))
    for kind, run in RUNS:
        if kind != "twice":
            told.expected[run] = list(KINDS[kind])
            told.results[run] = await handles[run].result(SOON)
            told.ended[run] = await handles[run].describe()
        else:
            told.expected[run] = [2, 7, 4, 7, 4]
            await crew.seen(lambda line, run=run: line.what == "begin" and _is_second(line, run), f"{run} to go on")  # type: ignore[misc]
    return told


def _is_second(line: Line, run: str) -> bool:
    return line.run == run and line.step.startswith("5:held")


def interrupted(crew: Crew) -> list[Line]:
    """What stopped workers are inside of."""
    lines = crew.effects.look()
    ended = {line.token for line in lines if line.what == "end"}
    return [line for line in lines if line.what == "begin" and line.token not in ended]


async def all_awake(crew: Crew, before: list[Line]) -> None:
    """Until every worker has driven a whole run of its own, and threads, which nobody can cancel, have ended."""
    probes = [await probe.start(id=f"probe-{number}") for number, probe in enumerate(PROBE)]
    await asyncio.gather(*(probe.result(SOON) for probe in probes))
    in_threads = {line.token for line in before if ":thread_held" in line.step}
    await until(lambda: not in_threads & {line.token for line in interrupted(crew)}, "threads to end")


def begun_by_zombies(lines: list[Line], stopped: dict[int, float], runs: set[str]) -> list[str]:
    """Steps of these runs that a worker began after it was stopped."""
    return [
        f"{line} was begun by a zombie"
        for line in lines
        if line.what == "begin" and line.run in runs and line.at > stopped.get(line.pid, line.at)
    ]
