"""A soak test of one database: a mixed load for a long time while workers are killed and replaced by changed code."""

import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from perdure import Client, Retention
from perdure.model.states import TERMINAL
from perdure.storage.stores import SQLStorage
from perdure.testing.servers import Server, memory_folder
from tests.chaos.ledger import commit
from tests.engine.crashes.rig.databases import own_database, own_server
from tests.engine.crashes.rig.effect_table import TABLE, make_table
from tests.engine.waiting import stuck_runs
from tests.soak.chart import chart
from tests.soak.judge import Verdict, judge
from tests.soak.load import Load
from tests.soak.pool import Pool
from tests.soak.samples import Sample, Sampler, counted, rows_of_tables
from tests.soak.worker import WorkerOptions

RATE = 5.0
LEFT_SEC = 60.0
# Autovacuum looks every ten seconds instead of every minute: retention deletes minutes after, not days.
SETTINGS = {"postgresql": {"autovacuum_naptime": "10s"}, "mysql": {}}
NOTHING_KEPT = Retention(finished=0.001, messages=0.001, outbox=0.001, message_ids=0.001)
# Tables with a few rows that stay: ledgers, definitions, locks, and one row for each source of events.
KEPT = {
    "schema_version", "workflow_definitions", "system_locks", "perdure_lock_tokens", "perdure_workers",
    "perdure_outbox_sequences", "perdure_outbox_sources",
}  # fmt: skip
UNFINISHED = f"status NOT IN ({', '.join(repr(str(status.value)) for status in sorted(TERMINAL))}, 'recurred')"
# What must be gone when every run has ended.
LEFTOVERS = {
    "unfinished runs": f"SELECT count(*) FROM workflow_instances WHERE {UNFINISHED}",
    "leases": "SELECT count(*) FROM workflow_instances WHERE locked_by IS NOT NULL",
    "timers": "SELECT count(*) FROM workflow_timer_subscriptions",
    "waits": "SELECT count(*) FROM perdure_waits",
    "events in the outbox": "SELECT count(*) FROM outbox_events WHERE status <> 'published'",
    "effects of no run": f"SELECT count(*) FROM {TABLE} WHERE run NOT LIKE 'soak.tick@%'",
    "effects that a tick had twice": f"SELECT count(*) - count(DISTINCT run) FROM {TABLE}",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, and how much."""

    seconds: float
    rate: float = RATE  # cases per second; a case has one to four runs
    kill_every_sec: float = 15.0
    deployments: int = 5
    sample_sec: float = 5.0
    keep_sec: float = 60.0  # retention
    seed: int = 1


@dataclass(slots=True)
class Report:
    """What came of it."""

    database: str
    commit: str
    plan: Plan
    samples: list[Sample]
    figures: dict[str, float] = field(default_factory=dict)
    deployments: list[float] = field(default_factory=list)  # seconds since the start
    wrong: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def is_fine(self) -> bool:
        return not self.wrong and all(verdict.is_fine for verdict in self.verdicts)

    def write(self, folder: Path) -> None:
        """Write the samples as JSON, and the chart."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"soak-{self.database}.json").write_text(json.dumps(asdict(self)) + "\n")
        title = f"{self.database}: {self.plan.seconds / 60:g} minutes, {self.figures.get('kills', 0):g} kills"
        (folder / f"soak-{self.database}.svg").write_text(chart(title, self.samples, self.deployments))

    def summary(self) -> list[str]:
        figures = ", ".join(f"{name} {value:,.4g}" for name, value in self.figures.items())
        tables_fine = sum(verdict.is_fine for verdict in self.verdicts if verdict.figure.startswith("rows of"))
        shown = [each for each in self.verdicts if not each.is_fine or not each.figure.startswith("rows of")]
        notes = [f"ok    rows of {tables_fine} tables"] if self.verdicts else ["too few samples to judge growth"]
        return [f"{self.database}: {figures}", *map(str, shown), *notes, *(f"WRONG {each}" for each in self.wrong[:20])]


@dataclass(slots=True)
class Soak:
    """The soak test of one database."""

    backend: str
    plan: Plan
    load: Load | None = None  # once it runs
    pool: Pool | None = None

    async def run(self) -> Report:
        folder = Path(tempfile.mkdtemp(prefix="perdure-soak-", dir=memory_folder(4 << 30)))
        wrong = False
        try:
            async with _database(self.backend, folder) as (url, storage, files, server):
                report = await self._run(url, storage, files, server, folder)
            wrong = bool(report.wrong)
        finally:
            if not wrong:  # else its log may tell why
                shutil.rmtree(folder, ignore_errors=True)
        return report

    async def _run(self, url: str, storage: SQLStorage, files: Path, server: Server | None, folder: Path) -> Report:
        chance = random.Random(self.plan.seed)
        options = WorkerOptions(url, str(folder), self.plan.keep_sec)
        report = Report(self.backend, commit(), self.plan, [])
        await make_table(storage)
        async with Client(url) as client, Pool(options, storage, chance) as pool:
            load = self.load = Load(client, storage, folder / "published", chance)
            self.pool = pool
            sampler = Sampler(self.backend, storage, files, server, pool, load)
            tasks = load.run(self.plan.rate, self.plan.seconds), self._sample(sampler), self._disturb(report)
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            report.wrong += load.wrong + [repr(error) for error in ends if isinstance(error, Exception)]
            report.samples = sampler.samples
            report.wrong += await _leftovers(client, storage)
            await pool.stop()
            report.wrong += await _rows_after_sweep(client, storage, self.backend)
            report.figures = await self._figures(storage)
        report.verdicts = judge(report.samples)
        return report

    async def _sample(self, sampler: Sampler) -> None:
        """Take samples as long as the load lasts, not while it ends."""
        end = time.monotonic() + self.plan.seconds
        while time.monotonic() < end:
            await asyncio.sleep(self.plan.sample_sec)
            await sampler.take()

    async def _disturb(self, report: Report) -> None:
        """Kill workers and deploy new code, at fixed times; a kill is left out if the next one is due already."""
        assert self.pool is not None
        plan, began = self.plan, time.monotonic()
        kills = [number * plan.kill_every_sec for number in range(1, int(plan.seconds / plan.kill_every_sec) + 1)]
        deployments = [plan.seconds * number / (plan.deployments + 1) for number in range(1, plan.deployments + 1)]
        for at, is_kill in sorted([(at, True) for at in kills] + [(at, False) for at in deployments]):
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            if is_kill:
                if at == kills[-1] or time.monotonic() < began + at + plan.kill_every_sec:
                    await self.pool.kill_one()
            else:
                report.deployments.append(round(time.monotonic() - began, 1))
                await self.pool.deploy()

    async def _figures(self, storage: SQLStorage) -> dict[str, float]:
        assert self.load is not None
        assert self.pool is not None
        ticks = await storage.db().fetchval(f"SELECT count(DISTINCT run) FROM {TABLE}")
        return {
            "runs": self.load.ended,
            "kills": self.pool.kills,
            "deployments": self.pool.options.version,
            "runs on changed code": self.load.patched,
            "cron ticks": int(ticks),
        }


@asynccontextmanager
async def _database(backend: str, folder: Path) -> AsyncIterator[tuple[str, SQLStorage, Path, Server | None]]:
    """The URL of a new database, a storage on it, and the folder of its files."""
    if backend == "sqlite":
        async with own_database(backend, folder) as database:
            yield database.url, await database.storage(), folder, None
    else:
        async with own_server(backend, SETTINGS[backend]) as server, own_database(backend, folder, server) as database:
            yield database.url, await database.storage(), server.home, server


async def _leftovers(client: Client, storage: SQLStorage) -> list[str]:
    """Wait until nothing is left of the ended runs, and return what is left; a cron tick may be in progress."""
    patience = time.monotonic() + LEFT_SEC
    while True:
        counts = await counted(storage, LEFTOVERS)
        left = [f"{count} {what} are left" for what, count in counts.items() if count]
        left += [f"{run.id} is stuck: {run.stuck}" for run in await stuck_runs(client)]
        if not left or time.monotonic() > patience:
            return left
        await asyncio.sleep(0.1)


async def _rows_after_sweep(client: Client, storage: SQLStorage, backend: str) -> list[str]:
    """Delete everything that has ended, and return which tables still have rows."""
    await client.sweep(NOTHING_KEPT)
    rows = await rows_of_tables(storage, backend)
    late = await client.runs(workflow="soak.tick").count()  # started while the workers stopped
    allowed = {**dict.fromkeys(KEPT, sys.maxsize), "workflow_instances": late, "workflow_history": late}
    return [f"{count} rows of {table} are left" for table, count in rows.items() if count > allowed.get(table, 0)]
