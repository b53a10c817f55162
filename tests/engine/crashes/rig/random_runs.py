"""Runs of random plans under random kills; what is stored of them is compared with the model."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from perdure import Client, WorkflowFailedError, WorkflowStatus
from perdure.model.records import HistoryEvent
from perdure.storage.stores import SQLStorage
from tests.engine.crashes.rig import model as m
from tests.engine.crashes.rig.checker import Checker, Rows
from tests.engine.crashes.rig.crash_points import SharedForkServer, WorkerPlan, all_rows, is_undo, of_generation
from tests.engine.crashes.rig.effect_log import Effects
from tests.engine.crashes.rig.model import Model, Plan, Planner
from tests.support.storages import Database

WORKERS = 3
RESULT_SEC = 60


class RandomRun:
    """One run: its plan, what must come of it, and what was said to have."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        planner = Planner(self.chance)
        self.id = f"play-{seed}"
        self.plan: Plan = planner.plan()
        self.events = planner.events
        self.model = Model.of(self.plan)
        self.result: list[Any] | None = None

    async def run(self, client: Client) -> None:
        """Start it, send it what it waits for, early or late, and see its end."""
        await asyncio.sleep(self.chance.uniform(0, 1))
        handle = await m.play.options(id=self.id).start(self.plan, [])
        streams = {label: iter(events) for label, events in self.events.items()}
        for label in self._turns():
            await asyncio.sleep(self.chance.choice((0, 0, 0, 0, 0.1, 0.3)))
            await client.send_event(f"model.{label}", next(streams[label]), to=self.id)
        try:
            self.result = await handle.result(RESULT_SEC)
        except WorkflowFailedError:
            self.result = None

    def _turns(self) -> list[int]:
        """The labels of all events in any order; those of one label keep theirs."""
        turns = [label for label, events in self.events.items() for _ in events]
        self.chance.shuffle(turns)
        return turns

    def check(self, checker: Checker) -> None:
        """Hold what is stored of it and of its children against the model."""
        rows = checker.rows
        mine = [run for run in rows.instances if run.startswith(self.id) and run[len(self.id) :][:1] in ("", "/", "~")]
        events = [event for run in mine for event in rows.history[run]]
        model = self.model
        found = Counter(rows.instances[run].status for run in mine)
        self._same(checker, "result", self.result, model.result)
        self._same(checker, "done", Counter(mark for event in events if (mark := _mark(event))), model.done)
        self._same(checker, "undone", _undone(events, "CompensationExecuted"), sum(model.undone.values()))
        self._same(checker, "undone in vain", _undone(events, "CompensationFailed"), 0)
        self._same(checker, "retries", _retries(events), sum(model.retried.values()))
        self._same(checker, "runs", len(mine), model.runs)
        self._same(checker, "failed runs", found[WorkflowStatus.FAILED], model.failed_runs)
        self._same(checker, "cancelled runs", found[WorkflowStatus.CANCELLED], 0)
        for run in mine:
            steps = [event.activity_id for event in rows.history[run]]
            self._same(checker, "rows", len(set(steps)), len(steps))
            self._check_order(checker, run)

    def _check_order(self, checker: Checker, run: str) -> None:
        """What was booked in a run that failed is undone, the last first."""
        rows = checker.rows
        done = [event.activity_id for event in rows.history[run] if _is_booked(event)]
        undone = [
            json.loads(event.event_data or b"")["activity_id"]
            for event in rows.history[run]
            if event.event_type == "CompensationExecuted"
        ]
        failed = rows.instances[run].status is WorkflowStatus.FAILED
        self._same(checker, f"order of {run}", undone, done[::-1] if failed else [])

    def _same(self, checker: Checker, what: str, found: object, expected: object) -> None:
        checker.expect(found == expected, f"{self.id}: {what}: {found} is not {expected}")


def _mark(event: HistoryEvent) -> int:
    """The label of a step that was recorded; 0 of anything else."""
    data = json.loads(event.event_data or b"null") if event.event_type == "ActivityCompleted" else None
    return int(data["value"]) if isinstance(data, dict) and "token" in data else 0


def _is_booked(event: HistoryEvent) -> bool:
    return event.event_type == "ActivityCompleted" and event.activity_id.endswith(f":{m.book.name}")


def _undone(events: list[HistoryEvent], kind: str) -> int:
    return sum(event.event_type == kind for event in events)


def _retries(events: list[HistoryEvent]) -> int:
    """Attempts of steps that failed; those of undos are not in the model."""
    return sum(event.event_type == "ActivityAttemptFailed" and m.flaky.name in event.activity_id for event in events)


async def storm(
    fork_server: SharedForkServer, worker_plan: WorkerPlan, chance: random.Random, until: asyncio.Event, most: int
) -> int:
    """Kill a worker at random times, and start another in its place, until `until` is set."""
    pids = [await fork_server.start_worker(worker_plan) for _ in range(WORKERS)]
    kills = 0
    while not until.is_set():
        await asyncio.sleep(chance.uniform(0.1, 0.6))
        if kills < most:  # enough is enough: in the end there is peace
            await fork_server.kill(pids.pop(chance.randrange(WORKERS)))
            pids.append(await fork_server.start_worker(worker_plan))
            kills += 1
    return kills


async def said(storage: SQLStorage) -> Counter[int]:
    """All that runs published."""
    found, last = Counter[int](), 0
    while page := await storage.get_pending_channel_messages(m.SAID, last):
        found.update(json.loads(message.data or b"") for message in page)
        last = page[-1].id
    return found


def check_undone(checker: Checker, rows: Rows) -> None:
    """An undo was given the result that was recorded."""
    for line in checker.lines:
        if line.what == "undone":
            step = line.step.removeprefix("undo:")
            checker.expect(rows.marks(line.run).get(step) == line.token, f"{line} is not what was recorded")


async def perform(database: Database, folder: Path, seed: int, count: int) -> tuple[Checker, dict[str, float]]:
    """That many plans, of this seed and the next ones, while workers die; what is wrong, and figures."""
    runs = [RandomRun(seed + number) for number in range(count)]
    effects, quiet = Effects(folder / "effects"), asyncio.Event()
    async with Client(database.url) as client, SharedForkServer(m.__name__) as fork_server:
        worker_plan = WorkerPlan(database.url, str(folder), m.__name__)
        async with asyncio.TaskGroup() as group:
            kills = group.create_task(storm(fork_server, worker_plan, random.Random(seed), quiet, 10 + count))
            await asyncio.gather(*(run.run(client) for run in runs))
            quiet.set()
    storage = await database.storage()
    rows, published = await all_rows(storage), await said(storage)
    checker = Checker(rows, [of_generation(line, rows) for line in effects.look() if line.key])
    checker.check_fences()
    check_undone(checker, rows)
    for run in runs:
        run.check(checker)
    expected = sum((run.model.said for run in runs), Counter[int]())
    checker.expect(published == expected, f"said: {published - expected} too much, {expected - published} too little")
    checker.lines = [line for line in checker.lines if not is_undo(line)]
    checker.check_steps()
    failed = sum(run.model.result is None for run in runs)
    return checker, {"failed": failed, "runs": len(rows.instances), "kills": kills.result()}
