"""Power cuts on SQLite: no acknowledged write is lost, every write is atomic, and work continues.

A process of its own runs perdure on files that record every write and every sync. Each cut takes the recording up to
some moment, forgets by chance what was not synced by then, and opens what is left with Python's own SQLite. A share of
them is cut again while they are being recovered.
"""

import asyncio
import json
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random

from perdure import App
from perdure.storage.stores import open_storage
from tests.chaos.power_checks import Acknowledgements, violations
from tests.chaos.power_disk import Disk
from tests.chaos.power_log import Kind, Record, read
from tests.chaos.power_second_cut import Recovery
from tests.chaos.power_workflow import order
from tests.chaos.rigs import Outcome, Rig, Round

ROOT = Path(__file__).parents[2]
FULL, NORMAL = 2, 1
LIVES = 40
FAILING = 0.02  # of the syncs in every second recording
REOPENED = 40  # one cut in so many is opened by perdure, too
AGAIN = 9  # one in so many is cut again
RARE = {Kind.CREATE, Kind.DELETE, Kind.TRUNCATE, Kind.FAILED_SYNC}


async def play(round: Round) -> Outcome:
    """One recording and its cuts."""
    return await cuts(round, failing=FAILING if round.seed % 2 else 0.0)


async def cuts(
    round: Round,
    *,
    synchronous: int = FULL,
    failing: float = 0.0,
    ignores_sync: bool = False,
    lives: int = LIVES,
    again: int = AGAIN,
    ignores_sync_later: bool = False,
) -> Outcome:
    """Play a round; with less than full synchrony, or a disk that ignores syncs, something has to be lost."""
    with _fast_folder(round.folder) as folder:
        began = time.monotonic()
        recording = await _record(folder, round.seed, lives, synchronous, failing)
        outcome = Outcome(0, figures={"records": len(recording), "recording_sec": time.monotonic() - began})
        cutter = _Cutter(recording, folder / "cut.db", Random(round.seed), outcome, ignores_sync)
        recovery = Recovery(
            cutter.database,
            cutter.chance,
            cutter.acknowledged,
            synchronous,
            ignores_sync=ignores_sync or ignores_sync_later,
        )
        await cutter.run(round.count, recovery, again)
        wanted = {"journal_mode": "wal", "synchronous": synchronous, "foreign_keys": 1}
        if cutter.acknowledged.pragmas != wanted:
            outcome.wrong.append(f"not the pragmas that were asked for: {cutter.acknowledged.pragmas}")
        if outcome.wrong:
            shutil.copy(folder / "recording", round.folder)
        return outcome


@contextmanager
def _fast_folder(folder: Path) -> Iterator[Path]:
    """In memory if there is such a place: what is cut here is only played."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="perdure-power-", dir=memory if memory.is_dir() else folder) as fast:
        yield Path(fast)


async def _record(folder: Path, seed: int, lives: int, synchronous: int, failing: float) -> list[Record]:
    command = [sys.executable, "-m", "tests.chaos.power_process", folder, seed, lives, synchronous, failing]
    process = await asyncio.create_subprocess_exec(*map(str, command), cwd=ROOT)
    try:
        async with asyncio.timeout(300):
            code = await process.wait()
    except BaseException:
        process.kill()
        raise
    assert code == 0, f"the process that is recorded ended with {code}"
    return list(read(folder / "recording"))


class _Cutter:
    """Plays a recording and looks at what is left of it at many moments."""

    def __init__(
        self, recording: list[Record], database: Path, chance: Random, outcome: Outcome, ignores_sync: bool
    ) -> None:
        self.recording, self.database, self.chance, self.outcome = recording, database, chance, outcome
        self.disk, self.acknowledged = Disk(chance, ignores_sync=ignores_sync), Acknowledgements()
        self.rare = [place for place, record in enumerate(recording) if record.kind in RARE]
        outcome.figures |= {"acknowledged": 0, "cut again": 0, "reopened": 0, "continued": 0}

    async def run(self, count: int, recovery: Recovery, again: int) -> None:
        played = 0
        for moment in sorted(self._moment() for _ in range(count)):
            for record in self.recording[played:moment]:
                self._play(record)
            played = moment
            how = self.disk.cut(self.database)
            if self.outcome.done % again == 0:
                wrong = await self._wrong_again(recovery)
                self.outcome.figures["cut again"] += 1
            else:
                wrong = await self._wrong()
            if wrong:
                more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
                self.outcome.wrong.append(f"cut after record {moment} ({how}): {wrong[0]}{more}")
            self.outcome.done += 1
        self.outcome.figures["acknowledged"] = self.acknowledged.count

    def _moment(self) -> int:
        """Anywhere, or soon after something rare."""
        end = len(self.recording)
        if self.rare and self.chance.random() < 0.25:
            return min(end, self.chance.choice(self.rare) + self.chance.randint(1, 8))
        return self.chance.randint(1, end)

    def _play(self, record: Record) -> None:
        if record.kind is Kind.ACKNOWLEDGED:
            about = json.loads(record.data)
            self.acknowledged.acknowledge(about.pop("what"), **about)
        else:
            self.disk.apply(record)

    async def _wrong_again(self, recovery: Recovery) -> list[str]:
        try:
            with recovery.cut() as how:
                return [f"{each} ({how})" for each in await self._wrong()]
        except (sqlite3.Error, ValueError) as error:
            return [f"damaged: {error!r}"]

    async def _wrong(self) -> list[str]:
        try:
            wrong = self._broken()
            if not wrong and self.outcome.done % REOPENED == 0:
                wrong = await self._reopened()
        except (sqlite3.Error, ValueError) as error:  # the latter for text that is none
            wrong = [f"damaged: {error!r}"]
        return wrong

    def _broken(self) -> list[str]:
        """By SQLite's own judgement, then by ours."""
        with closing(sqlite3.connect(self.database)) as connection:

            def fetch(sql: str) -> list[tuple[object, ...]]:
                return connection.execute(sql).fetchall()

            if (found := fetch("PRAGMA integrity_check")) != [("ok",)]:
                return [f"damaged: {found[:3]}"]
            if found := fetch("PRAGMA foreign_key_check"):
                return [f"rows without those they belong to: {found[:3]}"]
            if not fetch("SELECT 1 FROM sqlite_master WHERE name = 'effects'"):  # the last table that is made
                return ["lost: the tables"] if "pragmas" in self.acknowledged.what else []
            return violations(self.acknowledged, fetch)

    async def _reopened(self) -> list[str]:
        """Perdure makes tables that are missing, takes over what was leased, and finishes every run exactly once."""
        url = f"sqlite:///{self.database}"
        self.outcome.figures["reopened"] += 1
        async with open_storage(url) as storage:
            for run, token in self.acknowledged.tokens.items():
                if run not in self.acknowledged.done:
                    await storage.release_lock(run, "w")
                    lease = await storage.try_acquire_lock(run, "w", 30)
                    if lease is not None and lease.token <= token:
                        return [f"{run} was leased again with token {lease.token}"]
        if self.acknowledged.started:
            began = time.monotonic()
            async with App(url, workflows=[order], lease=timedelta(seconds=2)) as app:
                for run, number in self.acknowledged.started.items():
                    if await app.get(run).result(60) != number * 2 + 3:
                        return [f"{run} gave another result after the cut"]
            self.outcome.figures["continued"] += len(self.acknowledged.started)
            took = time.monotonic() - began
            self.outcome.figures["went_on_max_sec"] = max(took, self.outcome.figures.get("went_on_max_sec", 0.0))
        return self._broken()


RIG = Rig("power", "power cuts", {"sqlite": 20_000}, 500, play)
