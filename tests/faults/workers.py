"""Workers that meet a fault at one of their storage's calls, and the next one, which a supervisor would start.

The app continues after temporary faults. An app that was cancelled, or could not start, is followed by another.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from perdure import App, Client
from perdure.engine.api import database as databases
from perdure.errors import PerdureError
from perdure.storage.stores import SQLStorage, open_storage
from tests.engine.crashes.rig.checker import Checker
from tests.engine.crashes.rig.crash_points import LEDGER, all_rows, is_undo, of_generation
from tests.engine.crashes.rig.effect_log import EFFECTS, Effects
from tests.engine.waiting import row_of
from tests.faults.calls import Calls, Kind
from tests.faults.enumerator import attach
from tests.faults.table_snapshots import SESSION, Watcher, watch
from tests.faults.workflows import CAST, PLAYS, Play
from tests.support.storages import Database

LEASE = timedelta(seconds=1)
GRACE = timedelta(seconds=0.3)
BOUND_SEC = 30.0
KINDS = tuple(kind for kind in Kind if kind is not Kind.CONFLICT)  # which no worker hears of


@dataclass(frozen=True, slots=True)
class RunCase:
    """One fault of a worker."""

    play: str
    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.play}:{self.kind}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> "RunCase":
        play, kind, number = text.split(":")
        return cls(play, Kind(kind), int(number))


@dataclass(slots=True)
class Ended:
    """What came of a case."""

    hit: bool
    wrong: list[str]
    calls: list[str]
    seconds: float


class Openings:
    """The storages that apps open, by database; the first of each that is asked for has its calls counted."""

    def __init__(self) -> None:
        self._expected: dict[str, Calls] = {}

    def expect(self, url: str, calls: Calls) -> None:
        self._expected[url.partition("?")[0]] = calls

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = databases.__dict__["open_storage"]
        databases.__dict__["open_storage"] = self._open
        try:
            yield
        finally:
            databases.__dict__["open_storage"] = before

    def _open(self, url: str) -> SQLStorage:
        storage = open_storage(url)
        calls = self._expected.pop(url.partition("?")[0], None)
        if calls is not None:
            attach(storage, calls)
        return storage


@dataclass(slots=True)
class RunPlayer:
    """Plays one case after the other on one database."""

    url: str  # of the workers
    client: Client
    storage: SQLStorage
    watcher: Watcher
    openings: Openings
    effects: Effects
    _played: int = 0

    async def play(self, case: RunCase) -> Ended:
        """Let a worker meet the fault, and see the runs to their end."""
        self._played += 1
        play, label = PLAYS[case.play], f"{case.play}-{case.kind}-{case.number}-{self._played}"
        calls, began = Calls(self.watcher.kill, case.kind, case.number), time.monotonic()
        await self._wipe()
        wrong: list[str] = []
        await play.start(self.client, label)
        self.openings.expect(self.url, calls)
        calls.armed = True
        try:
            async with asyncio.timeout(BOUND_SEC):
                wrong += await self._work(play, label, calls)
        except TimeoutError:
            statuses = {run: (await row_of(self.client, run)).status for run in play.runs(label)}
            wrong.append(f"after {BOUND_SEC} s the runs are {statuses}")
        calls.armed = False
        calls.over.set()
        wrong += await self._check(play, label)
        statement = calls.texts[case.number - 1][:60] if calls.hit else "never called"
        seconds = time.monotonic() - began
        return Ended(calls.hit, [f"{case} ({statement}): {each}" for each in wrong], calls.texts, seconds)

    async def _work(self, play: Play, label: str, calls: Calls) -> list[str]:
        """One worker after the other until the runs have ended."""
        wrong: list[str] = []
        ending = asyncio.create_task(play.end(self.client, label))
        first = asyncio.create_task(self._serve())
        others = [asyncio.create_task(self._serve()) for _ in range(play.workers - 1)]
        calls.caller = first if calls.kind is Kind.CANCEL else None
        workers = [first, *others]
        try:
            while not ending.done():
                await asyncio.wait([ending, *workers], return_when=asyncio.FIRST_COMPLETED)
                for worker in [each for each in workers if each.done()]:
                    error = None if worker.cancelled() else worker.exception()
                    if not (worker is first and calls.hit and (error is None or isinstance(error, PerdureError))):
                        wrong.append(f"a worker ended with {error!r}")
                    workers[workers.index(worker)] = asyncio.create_task(self._serve())
            ending.result()
        finally:
            for task in (ending, *workers):
                task.cancel()
            await asyncio.wait([ending, *workers], timeout=BOUND_SEC)
        return wrong

    async def _serve(self) -> None:
        """A worker, until it is cancelled."""
        async with App(self.url, workflows=CAST, lease=LEASE, drain_timeout=GRACE, hooks=[EFFECTS.hook]):
            await asyncio.Event().wait()

    async def _check(self, play: Play, label: str) -> list[str]:
        rows = await all_rows(self.storage)
        mine = [line for line in self.effects.look() if line.run.startswith(label)]
        lines = [of_generation(line, rows) for line in mine if line.key]
        checker = Checker(rows, [line for line in lines if not is_undo(line)])
        checker.check_steps()
        checker.lines = lines
        checker.check_fences()
        await play.check(checker, self.storage, label)
        began = time.monotonic()
        while held := await self.watcher.held():
            if time.monotonic() - began > 3:
                checker.wrong.append(f"this is still held: {held}")
                break
            await asyncio.sleep(0.005)
        return checker.wrong

    async def _wipe(self) -> None:
        await self.watcher.wipe()
        await self.storage.db().execute(f"DELETE FROM {LEDGER}")


@asynccontextmanager
async def open_player(database: Database, effects: Path, openings: Openings) -> AsyncIterator[RunPlayer]:
    """Open a player on a database of its own; several may share the log of effects."""
    storage = await database.storage()
    await storage.db().execute(f"CREATE TABLE IF NOT EXISTS {LEDGER} (run VARCHAR(100) NOT NULL)")
    watcher = await watch(database.backend, database.url)
    url = f"{database.url}?application_name={SESSION}" if database.backend == "postgresql" else database.url
    try:
        async with Client(database.url) as client:
            yield RunPlayer(url, client, storage, watcher, openings, Effects(effects))
    finally:
        await watcher.close()
        await storage.db().execute(f"DROP TABLE {LEDGER}")
