"""Six runs whose workers meet faults: a saga that fails, an event that comes and one that does not, two that compete
for messages, a run that recurs, a transaction with an event and a message, and a cancel in the middle."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from perdure import Client, Workflow, WorkflowStatus, activity, publish, receive, subscribe, wait_event, workflow
from perdure.model.states import TERMINAL
from perdure.storage.stores import SQLStorage
from tests.engine.crashes.rig import crash_points
from tests.engine.crashes.rig.checker import Checker
from tests.engine.crashes.rig.crash_points import LEDGER, MOVED, book
from tests.engine.crashes.rig.effect_table import run_sql
from tests.engine.crashes.rig.workflows import Executed, Mark
from tests.engine.waiting import row_of

SOON = timedelta(milliseconds=100)
LATE = timedelta(seconds=60)
JOBS = "fault.jobs"
EVENTS_TABLE = "outbox_events"


@workflow(name="fault.event")
async def expecting(run: str) -> str:
    await book("before")
    try:
        await wait_event("fault.never", timeout=SOON)
    except TimeoutError:
        await book("late")
    event = await wait_event("fault.came", timeout=LATE)
    await book("after")
    return str(event.data)


@workflow(name="fault.taker")
async def taker(run: str) -> str:
    await subscribe(JOBS, mode="competing")
    first = await receive(JOBS)
    await book(str(first.data))
    second = await receive(JOBS)
    await book(str(second.data))
    return f"{first.data} {second.data}"


@activity(name="fault.pay", transactional=True)
async def pay(run: str) -> Mark:
    executed = Executed()
    try:
        await run_sql(f"INSERT INTO {LEDGER} VALUES ('{run}')")
        await run_sql(
            f"INSERT INTO {EVENTS_TABLE} (event_id, event_type, event_source, event_data, created_at)"
            f" VALUES ('{executed.token}', 'paid', 'shop', '{{}}', '2026-01-01 00:00:00.000000')"
        )
    except Exception as error:  # an attempt that failed, like any other
        raise executed.fail(repr(error)) from error
    await publish(MOVED, run)
    return executed.mark(0)


@workflow(name="fault.paying")
async def paying(run: str) -> str:
    await book("before")
    await pay(run)
    await book("after")
    return "paid"


CAST: Sequence[Workflow[..., str]] = [*crash_points.CAST, expecting, taker, paying]


@dataclass(frozen=True, slots=True)
class Play:
    """Runs, what is done to them, and how they must end; each has its own name as its input."""

    name: str
    workflow: Workflow[[str], str]
    ends: WorkflowStatus = WorkflowStatus.COMPLETED
    count: int = 1
    workers: int = 1
    act: Callable[[Client, str], Awaitable[None]] | None = None
    results: Callable[[Mapping[str, str]], bool] | None = None

    def runs(self, label: str) -> list[str]:
        """The ids of the runs of one case."""
        return [f"{label}-{number}" for number in range(self.count)]

    async def start(self, client: Client, label: str) -> None:
        """Before any worker looks."""
        for run in self.runs(label):
            await self.workflow.options(id=run).start(run)

    async def end(self, client: Client, label: str) -> None:
        """Do what is to be done, and see the runs to their end."""
        if self.act is not None:
            await self.act(client, self.runs(label)[0])
        for run in self.runs(label):
            while (await row_of(client, run)).status not in TERMINAL:  # noqa: ASYNC110 - others end it
                await asyncio.sleep(0.02)

    async def check(self, checker: Checker, storage: SQLStorage, label: str) -> None:
        """How they ended, and what they did that must be done once."""
        rows = checker.rows
        for id, row in rows.instances.items():
            steps = [event.activity_id for event in rows.history[id]]
            checker.expect(len(set(steps)) == len(steps), f"{id} has a step twice: {steps}")
            checker.expect(row.status in TERMINAL, f"{id} is left {row.status}")
        found = {run: rows.instances[run] for run in self.runs(label)}
        for run, row in found.items():
            checker.expect(row.status is self.ends, f"{run} is {row.status}")
        if self.results is not None:
            results = {run: str(json.loads(row.output_data or b"null")) for run, row in found.items()}
            checker.expect(self.results(results), f"the results are {results}")
        self._check_undone(checker)
        if self.workflow is crash_points.chain:
            checker.expect(len(rows.instances) == 3, f"generations: {list(rows.instances)}")
        once = 1 if self.workflow is paying else 0
        for what, text in (("ledger", f"SELECT * FROM {LEDGER}"), ("outbox", f"SELECT event_id FROM {EVENTS_TABLE}")):
            entered = await storage.db().fetch(text)
            checker.expect(len(entered) == once, f"the {what} has {entered}")
        sent = await storage.get_pending_channel_messages(MOVED)
        checker.expect(len(sent) == once, f"sent: {sent}")

    def _check_undone(self, checker: Checker) -> None:
        """What was done with an undo is undone once by the record, the last one first."""
        for run, events in checker.rows.history.items():
            undoable = [event.activity_id for event in events if event.activity_id.endswith(":crash.book")]
            undone = [
                json.loads(event.event_data or b"")["activity_id"]
                for event in events
                if event.event_type == "CompensationExecuted"
            ]
            expected = list(reversed(undoable)) if self.ends is not WorkflowStatus.COMPLETED else []
            kept = [step for step in undone if step.endswith(":crash.book")]
            checker.expect(kept == expected, f"{run} undid {undone}, not {expected}")


async def _send(client: Client, run: str) -> None:
    await client.send_event("fault.came", run, to=run)


async def _hand_out(client: Client, run: str) -> None:
    for number in range(4):
        await client.publish(JOBS, f"job{number}")


async def _cancel(client: Client, run: str) -> None:
    """Once it has booked, and waits."""
    while (await row_of(client, run)).status is WorkflowStatus.RUNNING:  # noqa: ASYNC110 - others drive it
        await asyncio.sleep(0.01)
    await client.cancel(run, "changed my mind")


def _shared(results: Mapping[str, str]) -> bool:
    return sorted(job for result in results.values() for job in result.split()) == [f"job{n}" for n in range(4)]


PLAYS = {
    play.name: play
    for play in (
        Play("saga", crash_points.saga, WorkflowStatus.FAILED),
        Play("event", expecting, act=_send, results=lambda found: all(run == was for run, was in found.items())),
        Play("competing", taker, count=2, workers=2, act=_hand_out, results=_shared),
        Play("recur", crash_points.chain, results=lambda found: all(len(was.split()) == 3 for was in found.values())),
        Play("transaction", paying, results=lambda found: set(found.values()) == {"paid"}),
        Play("cancel", crash_points.waiting, WorkflowStatus.CANCELLED, act=_cancel),
    )
}
