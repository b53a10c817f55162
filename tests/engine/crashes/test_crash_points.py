"""Workers crash before or right after each of their commits, and another worker ends the run correctly.

Each case has its own database. The suite tries a sample of the commits; PERDURE_CRASH_POINTS=all tries all.
"""

import asyncio
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import pytest

from perdure import Client, Workflow, WorkflowStatus
from perdure.engine.history.ids import HANDLED
from perdure.model.records import HistoryEvent, WorkflowInstance
from perdure.model.states import TERMINAL, WAITING
from perdure.storage.migrations import tables
from perdure.storage.stores import SQLStorage
from tests.engine.crashes.rig import crash_points
from tests.engine.crashes.rig.checker import Checker, Rows, all_right
from tests.engine.crashes.rig.crash_points import (
    LEDGER,
    MOVED,
    SharedForkServer,
    WorkerPlan,
    all_rows,
    is_undo,
    of_generation,
)
from tests.engine.crashes.rig.effect_log import Effects
from tests.engine.crashes.rig.worker_pool import until
from tests.engine.waiting import row_of
from tests.support.databases import fresh_mysql, fresh_postgres
from tests.support.storages import Database, server_database, sqlite_database, wipe

ALL = os.environ.get("PERDURE_CRASH_POINTS") == "all"
SEED = int(os.environ.get("PERDURE_SEED", "0")) or secrets.randbelow(1 << 32)
STRIDE = 1 if ALL else 13  # odd: points before a commit and after one take turns
RUNNERS = 8
UNDOABLE = ("crash.book", "crash.dawdle", "crash.hold")
UNDONE = (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED)


@dataclass(slots=True)
class Scenario:
    """A run, how it must end, and what it needs from outside."""

    workflow: Workflow[[str], str]
    ends: WorkflowStatus
    inside: str = ""  # cancelled once this step has begun
    waiting: bool = False  # cancelled once the run waits
    exhausted: bool = False  # a worker outlived its point: there are no more
    tried: int = 0

    async def act(self, client: Client, effects: Effects, run: str) -> None:
        """Do to the run what is to be done, and see it to its end."""
        if self.inside:
            await until(lambda: any(line.step == self.inside for line in effects.look()), f"{run} to be inside")
        elif self.waiting:
            await self._until(client, run, *WAITING)
        if self.inside or self.waiting:
            await client.cancel(run, "changed my mind")
            (effects.path.parent / run).touch()
        await self._until(client, run, *TERMINAL)

    async def _until(self, client: Client, run: str, *wanted: WorkflowStatus) -> None:
        async def found() -> bool:
            await asyncio.sleep(0.02)
            return (await row_of(client, run)).status in wanted

        await until(found, f"{run} to be {wanted}")


def scenarios() -> list[Scenario]:
    return [
        Scenario(crash_points.saga, WorkflowStatus.FAILED),
        Scenario(crash_points.working, WorkflowStatus.CANCELLED, inside="2:crash.dawdle"),
        Scenario(crash_points.holding, WorkflowStatus.CANCELLED, inside="2:crash.hold"),
        Scenario(crash_points.waiting, WorkflowStatus.CANCELLED, waiting=True),
        Scenario(crash_points.chain, WorkflowStatus.COMPLETED),
        Scenario(crash_points.parent, WorkflowStatus.COMPLETED),
        Scenario(crash_points.dropping, WorkflowStatus.COMPLETED),
        Scenario(crash_points.regretting, WorkflowStatus.FAILED),
        Scenario(crash_points.entering, WorkflowStatus.COMPLETED),
    ]


@dataclass(slots=True)
class Case:
    """One death, and what came of it."""

    scenario: Scenario
    point: int
    effects: Effects
    storage: SQLStorage
    run: str = field(init=False)
    died: bool = False
    known: Rows = field(default_factory=lambda: Rows({}, {}))  # when the worker had died
    begun: int = 0  # lines of the log by then

    def __post_init__(self) -> None:
        self.run = f"{self.scenario.workflow.name}-{self.point}"

    @property
    def crash_point(self) -> tuple[int, bool]:
        """Which commit, and whether after it."""
        return self.point // 2 + 1, self.point % 2 == 1

    async def live(self, fork_server: SharedForkServer, client: Client, worker_plan: WorkerPlan) -> None:
        """Let a worker die of the run, and another one end it."""
        await self.scenario.workflow.options(id=self.run).start(self.run)
        number, after = self.crash_point
        pid = await fork_server.start_worker(replace(worker_plan, dies_at=number, after=after))
        async with asyncio.TaskGroup() as group:
            acting = group.create_task(self.scenario.act(client, self.effects, self.run))
            while not acting.done() and not self.died:
                await asyncio.sleep(0.01)
                self.died = await fork_server.has_died(pid)
            if self.died:
                self.known, self.begun = await all_rows(self.storage), len(self.effects.look())
                pid = await fork_server.start_worker(worker_plan)
        self.died |= await fork_server.end(pid)  # of its last commits, with the run ended

    async def check(self) -> list[str]:
        """All that is wrong."""
        rows = await all_rows(self.storage)
        lines = [of_generation(line, rows) for line in self.effects.look() if line.key]
        checker = Checker(rows, [line for line in lines if not is_undo(line)])
        checker.check_steps()
        checker.lines = lines
        checker.check_fences()
        self._check_end(checker)
        self._check_repeats(checker)
        for run in rows.instances:
            self._check_undone(checker, run)
        await self._check_ledger(checker)
        return [f"{self.run} ({self.crash_point}): {what}" for what in checker.wrong]

    def _check_end(self, checker: Checker) -> None:
        rows, run = checker.rows, self.run
        for id, row in rows.instances.items():
            steps = [event.activity_id for event in rows.history[id]]
            checker.expect(len(set(steps)) == len(steps), f"{id} has a step twice: {steps}")
            checker.expect(row.status in TERMINAL, f"{id} is left {row.status}")
        checker.expect(rows.instances[run].status is self.scenario.ends, f"it is {rows.instances[run].status}")
        result = json.loads(rows.instances[run].output_data or b"null")
        marks = {id: list(rows.marks(id).values()) for id in rows.instances}
        match self.scenario.workflow.name:
            case "crash.chain":
                order = [*marks[f"{run}~1"], *marks[f"{run}~2"], *marks[run]]
                checker.expect(result == " ".join(order) and len(order) == 3, f"{result} != {order}")
                checker.expect(len(rows.instances) == 3, f"generations: {list(rows.instances)}")
            case "crash.parent":
                (child,) = set(rows.instances) - {run}
                checker.expect([result] == marks[child], f"{result} != {marks[child]}")
                checker.expect(json.loads(rows.instances[child].output_data or b"") == result, f"{child} disagrees")
            case "crash.dropping":
                (child,) = set(rows.instances) - {run}
                checker.expect(result == "gave up", f"it gave {result}")
                checker.expect(rows.instances[child].status is WorkflowStatus.CANCELLED, "the child was not dropped")
            case "crash.entering":
                checker.expect(result == "entered", f"it gave {result}")

    def _check_repeats(self, checker: Checker) -> None:
        """What was recorded when the worker died was not begun again."""
        over = {_key(row, event) for run, row in self.known.instances.items() for event in self.known.history[run]}
        for line in self.effects.lines[self.begun :]:
            checker.expect(line.what != "begin" or line.key not in over, f"{line} was recorded before")

    def _check_undone(self, checker: Checker, run: str) -> None:
        """Each step that was done is undone, once by the record, the last one first; nothing else is."""
        events, row = checker.rows.history[run], checker.rows.instances[run]
        expected = _to_undo(checker.rows, run) if row.status in UNDONE else []
        recorded = [json.loads(event.event_data or b"")["activity_id"] for event in events if _is_executed_undo(event)]
        checker.expect(recorded == expected, f"{run} undid {recorded}, not {expected}")
        begun = [line for line in checker.lines if line.run == run and line.what == "begin" and is_undo(line)]
        order = [step.removeprefix("undo:") for step, _ in groupby(line.step for line in begun)]
        handled = ["on_failure"] if row.workflow_name == crash_points.saga.name else []
        checker.expect(order == expected + handled, f"{run} ran {order}, not {expected + handled}")
        checker.expect(len({line.key for line in begun}) == len(order), f"{run} has keys {begun}")
        marks = checker.rows.marks(run)
        for line in checker.lines:
            step = line.step.removeprefix("undo:")
            if (line.what, line.run) == ("undone", run) and step in marks:
                checker.expect(line.token == marks[step], f"{line} undid another result than {marks[step]}")
        kinds = Counter(event.event_type for event in events)
        checker.expect(not kinds["CompensationFailed"], f"{run} has {kinds}")

    async def _check_ledger(self, checker: Checker) -> None:
        entered = 1 if self.scenario.workflow is crash_points.entering else 0
        rows = await self.storage.db().fetch(f"SELECT * FROM {LEDGER}")
        checker.expect(len(rows) == entered, f"the ledger has {rows}")
        sent = await self.storage.get_pending_channel_messages(MOVED)
        checker.expect(len(sent) == entered, f"sent: {sent}")


def _is_executed_undo(event: HistoryEvent) -> bool:
    return event.event_type == "CompensationExecuted"


def _key(row: WorkflowInstance, event: HistoryEvent) -> str:
    """The idempotency key of the step that must not begin once this row is there."""
    base = f"{row.instance_id.partition('~')[0]}:{row.continued_from or ''}:"
    if _is_executed_undo(event):
        return f"{base}undo:{json.loads(event.event_data or b'')['activity_id']}"
    if event.activity_id == HANDLED:
        return f"{base}on_failure"
    return base + event.activity_id if event.event_type in ("ActivityCompleted", "ActivityFailed") else ""


def _to_undo(rows: Rows, run: str) -> list[str]:
    """The steps of a run that have an undo, in the order in which they are to be undone."""
    done, begun = [], []
    for event in rows.history[run]:
        step, kind = event.activity_id, event.event_type
        name = step.partition(":")[2]
        if name == "child" or (name in UNDOABLE and kind == "ActivityCompleted"):
            done.append(step)
        elif step.endswith("!"):
            begun.append(step.removesuffix("!"))
    unsettled = [step for step in begun if step not in done]
    return [*reversed(unsettled), *reversed(done)]


@dataclass(slots=True)
class CaseRunner:
    """Runs one case after the other on one database."""

    database: Database
    client: Client
    storage: SQLStorage
    folder: Path

    async def run(self, fork_server: SharedForkServer, cases: Iterator[tuple[Scenario, int]]) -> list[str]:
        wrong: list[str] = []
        for scenario, point in cases:
            folder = self.folder / f"{scenario.workflow.name}-{point}"
            folder.mkdir()
            case = Case(scenario, point, Effects(folder / "effects"), self.storage)
            try:
                await case.live(fork_server, self.client, WorkerPlan(self.database.url, str(folder)))
            except BaseExceptionGroup as error:
                wrong += [
                    f"{case.run} {case.crash_point}: {error.exceptions}",
                    (folder / "workers.log").read_text()[-3000:],
                ]
                return wrong
            scenario.tried += case.died
            scenario.exhausted |= not case.died
            wrong += await case.check()
            await self._wipe()
        return wrong

    async def _wipe(self) -> None:
        if self.database.backend == "sqlite":  # where nothing switches off the references between tables
            for table in reversed(tables("sqlite")):
                await self.storage.db().execute(f"DELETE FROM {table}")
        else:
            await wipe(self.storage)
        await self.storage.db().execute(f"DELETE FROM {LEDGER}")


def points(plays: list[Scenario]) -> Iterator[tuple[Scenario, int]]:
    """What to try next: scenarios take turns until each has been outlived."""
    point = SEED % STRIDE
    while any(not play.exhausted for play in plays):
        for play in plays:
            if not play.exhausted:
                yield play, point
        point += STRIDE


@asynccontextmanager
async def opened(backend: str, folder: Path, template: Path, server: str) -> AsyncIterator[CaseRunner]:
    folder.mkdir()
    async with AsyncExitStack() as stack:
        if backend == "sqlite":
            database = await stack.enter_async_context(sqlite_database(folder, template))
        else:
            fresh = fresh_postgres if backend == "postgresql" else fresh_mysql
            url = await stack.enter_async_context(fresh(server))
            database = await stack.enter_async_context(server_database(backend, url))
        storage = await database.storage()
        await storage.db().execute(f"CREATE TABLE {LEDGER} (run VARCHAR(100) NOT NULL)")
        yield CaseRunner(database, await stack.enter_async_context(Client(database.url)), storage, folder)


async def run_cases(
    opening: AbstractAsyncContextManager[CaseRunner],
    fork_server: SharedForkServer,
    cases: Iterator[tuple[Scenario, int]],
) -> list[str]:
    """In a task of its own, for the client that is open there is the task's."""
    async with opening as runner:
        return await runner.run(fork_server, cases)


@pytest.mark.call("saga")
@pytest.mark.timeout(1800 if ALL else 120)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])
async def test_worker_crash_at_any_commit_is_recovered(
    backend: str, tmp_path: Path, sqlite_template: Path, request: pytest.FixtureRequest
) -> None:
    server = {"sqlite": "", "postgresql": "postgres_url", "mysql": "mysql_url"}[backend]
    url: str = request.getfixturevalue(server) if server else ""
    print(f"to repeat: PERDURE_SEED={SEED}")
    plays = scenarios()
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        fork_server = await stack.enter_async_context(SharedForkServer())
        cases = points(plays)
        async with asyncio.TaskGroup() as group:
            runners = [opened(backend, tmp_path / str(number), sqlite_template, url) for number in range(RUNNERS)]
            tasks = [group.create_task(run_cases(runner, fork_server, cases)) for runner in runners]
    tried = {play.workflow.name: play.tried for play in plays}
    print(f"{backend}: {sum(tried.values())} deaths in {time.monotonic() - began:.1f} s: {tried}")
    all_right(what for task in tasks for what in task.result())
    assert all(tried.values())
