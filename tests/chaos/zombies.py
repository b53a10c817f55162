"""Zombies: workers stopped inside activities beyond their lease, and woken when others have taken over.

On a server some are inside a transaction that has taken effect but for its commit. On SQLite no worker can take over
from such a worker, which stops all writers of the file: its lease is over when it wakes, and the step counts once.
"""

import asyncio
import random
import time
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

from perdure import Client, RunHandle
from perdure.storage.stores import SQLStorage
from tests.chaos.rigs import Outcome, Rig, Round
from tests.engine.crashes.rig.checker import Checker, read_rows
from tests.engine.crashes.rig.databases import own_database
from tests.engine.crashes.rig.dump import changes, dump, without
from tests.engine.crashes.rig.effect_log import Line
from tests.engine.crashes.rig.effect_table import entered, make_table
from tests.engine.crashes.rig.fork_server import WorkerSpec
from tests.engine.crashes.rig.load_driver import Observed
from tests.engine.crashes.rig.locks import OPEN, SETTLE_SEC, are_held
from tests.engine.crashes.rig.worker_pool import WorkerPool, until
from tests.engine.crashes.rig.workflows import GATES, PROBE, PROBES, Account, detained
from tests.engine.waiting import row_of
from tests.support.blocking import next_picture
from tests.support.storages import Database

EXPECTED = {"alone": [2, 7, 4], "threads": [2, 8, 4], "branches": [2, 7, 8, 8, 4], "twice": [2, 7, 4, 7, 4]}
IN_TRANSACTION = {"transaction": [2, 9, 4]}
NO_NET = "idle_transaction_timeout=3600"  # only the fence keeps such a zombie from committing
SOON = 60
INSIDE_SEC, MISSES = 30, 5
TRIES = 20


async def play(round_: Round) -> Outcome:
    async with own_database(round_.backend, round_.folder) as database:
        return await rise(database, round_)


async def rise(database: Database, round_: Round) -> Outcome:
    """Some zombies at a time, until there were enough."""
    storage = await database.storage()
    await make_table(storage)
    outcome, numbers = Outcome(0), count(1)
    kinds = EXPECTED if database.backend == "sqlite" else EXPECTED | IN_TRANSACTION
    spec = WorkerSpec(database.url, str(round_.folder))
    async with Client(database.url), WorkerPool(spec, random.Random(round_.seed)) as crew:
        GATES.folder = round_.folder
        missed = 0
        while outcome.done < round_.count and not outcome.wrong:
            zombies = min(PROBES, round_.count - outcome.done)
            episode = Episode(crew, database, storage, kinds, zombies, f"e{next(numbers)}")
            if await episode.is_set():
                outcome.wrong += await episode.play()
                outcome.done += zombies
            else:
                missed += 1
                assert missed < MISSES, "workers never came to be inside their runs"
            for pid in list(crew.alive):
                await crew.kill(pid)
        if database.backend == "sqlite" and not outcome.wrong:
            outcome.wrong += await OnSQLite(crew, database, storage, IN_TRANSACTION, 1, "alone").play()
    outcome.figures = {"episodes": next(numbers) - 1 - missed, "runs": outcome.done * len(kinds)}
    return outcome


class Episode:
    """Workers, each inside several runs: of all but one another worker sees the end, in the last it is still at work.

    On servers one is inside a transaction; of the workers there every second has sessions that the server does not end
    while they are idle.
    """

    def __init__(
        self,
        crew: WorkerPool,
        database: Database,
        storage: SQLStorage,
        kinds: dict[str, list[int]],
        zombies: int,
        name: str,
    ) -> None:
        self._crew, self._database, self._storage = crew, database, storage
        self._probes, self._name, self._kinds = PROBE[:zombies], name, kinds
        self._runs = {f"{name}-{kind}-{zombie}": kind for zombie in range(zombies) for kind in kinds}
        self._handles: dict[str, RunHandle[Account]] = {}
        self._gates = f"{name}-first", f"{name}-second"

    async def play(self) -> list[str]:
        """Return what is wrong."""
        crew, handles = self._crew, self._handles
        zombies = list(crew.alive)
        stopped = await self._stop()
        inside_of = self._interrupted()
        assert {line.pid for line in inside_of} == set(zombies)
        observed = await self._take_over()
        before, tokens = await dump(self._storage, handles), await self._tokens()
        for pid in zombies:
            await crew.fork_server.resume(pid)
        await self._all_awake(inside_of)
        after = await dump(self._storage, handles)
        given_up = [run for run, token in (await self._tokens()).items() if token != tokens[run]]  # by a starved heir
        wrong = changes(without(before, given_up), without(after, given_up))
        GATES.open(self._gates[1])
        for run, handle in handles.items():
            observed.results[run] = observed.results.get(run) or await handle.result(SOON)
        return [*wrong, *await self._check(observed), *begun_by_zombies(self._lines(), stopped)]

    async def _tokens(self) -> dict[str, int]:
        rows = await self._storage.get_instances(list(self._runs))
        return {row.instance_id: row.lock_token for row in rows if row is not None}

    async def _check(self, observed: Observed) -> list[str]:
        rows = await read_rows(self._storage)
        rows.instances = {run: row for run, row in rows.instances.items() if run in self._runs}
        rows.history = {run: rows.history[run] for run in self._runs}
        rows.entries = [entry for entry in await entered(self._storage) if entry.run in self._runs]
        checker = Checker(rows, self._lines())
        checker.check_runs(observed)
        checker.check_histories(observed)
        checker.check_steps()
        checker.check_fences()
        checker.check_entries()
        return checker.wrong

    def _lines(self) -> list[Line]:
        return [line for line in self._crew.effects.look() if line.run in self._runs]

    async def is_set(self) -> bool:
        """Start workers that have room for as many runs each as there are kinds, and runs that stay inside an activity.

        False if a worker starved and lost a run: it has no room for another while its thread is inside.
        """
        first, second = self._gates
        for run, kind in self._runs.items():
            gates = [first, second] if kind == "twice" else [first]
            self._handles[run] = await detained.options(id=run).start(gates, "alone" if kind == "twice" else kind)
        for number in range(len(self._probes)):
            await self._hire(max_runs=len(self._kinds), probe=number)
        inside_sec = time.monotonic() + INSIDE_SEC
        await until(lambda: self._inside() == set(self._runs) or time.monotonic() > inside_sec, "runs to begin", SOON)
        if self._inside() == set(self._runs):
            return True
        for gate in self._gates:
            GATES.open(gate)  # so that the next workers are soon done with them
        return False

    async def _hire(self, *, max_runs: int, probe: int) -> None:
        crew = self._crew
        spec = crew.spec
        if self._database.backend != "sqlite" and probe % 2 == 0:
            crew.spec = replace(spec, url=f"{spec.url}{'&' if '?' in spec.url else '?'}{NO_NET}")
        await crew.start_worker(max_runs=max_runs, probe=probe)
        crew.spec = spec

    def _inside(self) -> set[str]:
        """Runs that are inside an activity that waits for a gate: in all of them at once, where there are several."""
        lines = [line for line in self._lines() if line.what == "begin"]
        held = {line.run for line in lines if ":held" in line.step}
        in_threads = {line.run for line in lines if ":thread_held" in line.step}
        in_transactions = {line.run for line in self._lines() if line.what == "entered"}
        both = {"threads": in_threads, "branches": held & in_threads, "transaction": in_transactions}
        return {run for run, kind in self._runs.items() if run in both.get(kind, held)}

    async def _stop(self) -> dict[int, float]:
        """Stop all workers at a moment when no transactions are open but those of activities; return when each was."""
        crew = self._crew
        for _ in range(TRIES):
            await asyncio.sleep(crew.chance.uniform(0, 0.3))  # any moment is as good
            stopped = {pid: await crew.fork_server.stop(pid) for pid in crew.alive}
            if await self._is_apart():
                return stopped
            for pid in crew.alive:
                await crew.fork_server.resume(pid)
        raise AssertionError(f"of {TRIES} moments none was free of transactions")

    async def _is_apart(self) -> bool:
        """Whether all that has to be inside a transaction is, and nothing else."""
        wanted = sum(kind == "transaction" for kind in self._runs.values())
        if not wanted:
            return not await are_held(self._database, self._storage)
        deadline = time.monotonic() + SETTLE_SEC
        while time.monotonic() < deadline:
            if await self._open() == wanted:
                return True
            await asyncio.sleep(0.02)
        return False

    async def _open(self) -> int:
        """How many transactions are open on a server."""
        return int(await self._storage.db().fetchval(OPEN[self._database.backend]))

    async def _take_over(self) -> Observed:
        """Open the first gate, and let another worker do what it can; return what it did."""
        await self._crew.start_worker()
        GATES.open(self._gates[0])
        expected: dict[str, list[str | int] | None] = {run: [*self._kinds[kind]] for run, kind in self._runs.items()}
        observed = Observed(expected=expected, started=list(self._runs))
        for run, kind in self._runs.items():
            if kind == "twice":
                await until(lambda run=run: self._is_second(run), f"{run} to continue", SOON)  # type: ignore[misc]
            else:
                observed.results[run] = await self._handles[run].result(SOON)
                observed.ended[run] = await row_of(self._handles[run])
        return observed

    def _is_second(self, run: str) -> bool:
        return any(
            line.what == "begin" and line.run == run and line.step.startswith("5:held") for line in self._lines()
        )

    def _interrupted(self) -> list[Line]:
        """What stopped workers are inside of."""
        lines = self._lines()
        ended = {line.token for line in lines if line.what in ("end", "fail")}
        return [line for line in lines if line.what == "begin" and line.token not in ended]

    async def _all_awake(self, before: list[Line]) -> None:
        """Until every worker has driven a whole run of its own, and threads, which cannot be cancelled, have ended.

        And transactions: none of those that were open is, once there is a moment without any.
        """
        started = [
            await probe.options(id=f"{self._name}-probe-{number}").start() for number, probe in enumerate(self._probes)
        ]
        await asyncio.gather(*(probe.result(SOON) for probe in started))
        in_threads = {line.token for line in before if ":thread_held" in line.step}
        await until(lambda: not in_threads & {line.token for line in self._interrupted()}, "threads to end", SOON)
        if "transaction" in self._kinds:
            await until(self._none_is_open, "transactions to end", SOON)

    async def _none_is_open(self) -> bool:
        await next_picture()
        return await self._open() == 0


class OnSQLite(Episode):
    """A worker stopped inside a transaction: no other worker can write before it wakes, and by then its lease is over.

    It may have it renewed, if it is the first to write, or another takes the run over.
    """

    async def play(self) -> list[str]:
        crew, (run,), (gate, _) = self._crew, self._runs, self._gates
        self._handles[run] = await detained.options(id=run).start([gate], "transaction")
        zombie = await crew.start_worker(max_runs=1, probe=0)
        await until(lambda: run in self._inside(), "the run to begin", SOON)
        await self._stop()
        await crew.start_worker()
        await until(self._is_over, "the lease to be over", SOON)
        GATES.open(gate)
        await crew.fork_server.resume(zombie)
        observed = Observed(expected={run: [*self._kinds["transaction"]]}, started=[run])
        observed.results[run] = await self._handles[run].result(SOON)
        observed.ended[run] = await row_of(self._handles[run])
        await (await self._probes[0].options(id=f"{self._name}-probe").start()).result(SOON)
        return await self._check(observed)

    async def _is_apart(self) -> bool:
        """Whether the worker was stopped inside: its transaction has a limit, and is begun again after it."""
        return await are_held(self._database, self._storage)

    async def _is_over(self) -> bool:
        (row,) = await self._storage.get_instances(list(self._runs))
        assert row is not None
        assert row.lock_expires_at is not None
        return row.lock_expires_at < datetime.now(UTC)


def begun_by_zombies(lines: list[Line], stopped: dict[int, float]) -> list[str]:
    """Steps that a worker began after it was stopped, by a lease that it had before."""
    had = {(line.pid, line.run, line.fence) for line in lines if line.at < stopped.get(line.pid, 0.0)}
    return [
        f"{line} was begun by a zombie"
        for line in lines
        if line.what == "begin" and line.at > stopped.get(line.pid, line.at)
        if (line.pid, line.run, line.fence) in had
    ]


RIG = Rig("zombies", "zombies", {"sqlite": 500, "postgresql": 500, "mysql": 500}, 50, play)
