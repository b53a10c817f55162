"""Random trees of runs on few slots: whatever parents, children, rollbacks and cancellations do, every run ends.

PERDURE_FAMILY_EXAMPLES says how many are tried on SQLite; the servers have a fifth of that.
"""

import asyncio
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from perdure import App, Retry, activity, activity_info, recur, sleep, timeout, wait_event, workflow
from perdure.errors import WorkflowNotCancellableError
from tests.conftest import BackendDatabase
from tests.engine.waiting import until

EXAMPLES = int(os.environ.get("PERDURE_FAMILY_EXAMPLES", "8"))
BOUND_SEC = float(os.environ.get("PERDURE_FAMILY_BOUND_SEC", "60"))
QUICK = Retry(attempts=4, initial=timedelta(milliseconds=20))

pytestmark = pytest.mark.timeout(300 + 10 * EXAMPLES)  # a failure is made smaller first

working: Counter[str] = Counter()  # how many activities and compensations execute, by run
most = 0


@dataclass(frozen=True)
class Member:
    """What one run of a family does."""

    kind: str  # what it does with its children, or what it does itself if it has none
    children: "list[Member]" = field(default_factory=list)
    undo_fails: int | None = None  # it does something that is undone after so many failures
    recurs: int = 0


async def at_work() -> None:
    """Code of a run that executes for a moment."""
    global most
    run = activity_info().workflow_id
    working[run] += 1
    most = max(most, sum(1 for count in working.values() if count))
    try:
        await asyncio.sleep(0.002)
    finally:
        working[run] -= 1


@activity(retry=QUICK)
async def work(fails: bool) -> None:
    await at_work()
    if fails:
        raise ValueError("as planned")


@activity(name="families.book")
async def book(fails: int) -> None:
    await at_work()


@book.compensation(retry=QUICK)
async def unbook(fails: int, *, result: None) -> None:
    await at_work()
    if activity_info().attempt <= fails:
        raise ConnectionError("as planned")


@workflow(name="random_families.member")
async def member(plan: Member) -> None:
    if plan.undo_fails is not None:
        await book(plan.undo_fails)
    await ACTS[plan.kind](plan)
    if plan.recurs:
        recur(replace(plan, recurs=plan.recurs - 1))


def begun(plan: Member) -> "list[asyncio.Task[Any]]":
    return [asyncio.create_task(_child(child)) for child in plan.children]


async def _child(plan: Member) -> None:
    await member(plan)


async def _work(plan: Member) -> None:
    await work(False)


async def _fail(plan: Member) -> None:
    await work(True)


async def _doze(plan: Member) -> None:
    await sleep(0.01)


async def _wait(plan: Member) -> None:
    await wait_event("random_families.never")


async def _gather(plan: Member) -> None:
    await asyncio.gather(*begun(plan))


async def _race(plan: Member) -> None:
    await asyncio.wait(begun(plan), return_when=asyncio.FIRST_COMPLETED)


async def _group(plan: Member) -> None:
    async with asyncio.TaskGroup() as group:
        for child in plan.children:
            group.create_task(_child(child))


async def _tolerate(plan: Member) -> None:
    await asyncio.gather(*begun(plan), return_exceptions=True)


async def _leave(plan: Member) -> None:
    begun(plan)
    await work(False)


async def _hurry(plan: Member) -> None:
    with suppress(TimeoutError):
        async with timeout(0.05):
            await asyncio.gather(*begun(plan))


async def _poll(plan: Member) -> None:
    branches = begun(plan)
    while not any(branch.done() for branch in branches):
        await asyncio.wait(branches, timeout=0.03)


ACTS = {
    "work": _work, "fail": _fail, "doze": _doze, "wait": _wait,
    "gather": _gather, "race": _race, "group": _group, "tolerate": _tolerate,
    "leave": _leave, "hurry": _hurry, "poll": _poll,
}  # fmt: skip
PARENTS = ["gather", "race", "group", "tolerate", "leave", "hurry", "poll"]
UNDO_FAILS = st.none() | st.integers(0, 4)  # after four it is given up


def members(leaves: list[str]) -> st.SearchStrategy[Member]:
    alone = st.builds(Member, st.sampled_from(leaves), st.just([]), UNDO_FAILS, st.integers(0, 1))
    return st.recursive(
        alone,
        lambda some: st.builds(
            Member, st.sampled_from(PARENTS), st.lists(some, min_size=1, max_size=3), UNDO_FAILS, st.integers(0, 1)
        ),
        max_leaves=6,
    )


@dataclass(frozen=True)
class Story:
    """Families that share the slots, and when some of them are cancelled."""

    max_runs: int
    patient: list[Member]  # these end without being cancelled
    cancelled: list[tuple[Member, float]]  # these are cancelled after some seconds
    residents: int


STORIES = st.builds(
    Story,
    st.integers(1, 5),
    st.lists(members(["work", "fail", "doze"]), max_size=3),
    st.lists(st.tuples(members(["work", "fail", "doze", "wait"]), st.floats(0, 0.3)), min_size=1, max_size=4),
    st.sampled_from([0, 1000]),
)


async def play(backend: str, backend_database: BackendDatabase, story: Story) -> None:
    global most
    working.clear()
    most = 0
    async with (
        backend_database(backend) as database,
        App(database.url, max_runs=story.max_runs, max_cached_runs=story.residents, workflows=[member]) as app,
    ):
        for plan in story.patient:
            await member.start(plan)
        await asyncio.gather(*(_cancelled(app, plan, delay) for plan, delay in story.cancelled))
        sql = app._storage.db()

        async def all_ended() -> bool:
            left = "SELECT count(*) FROM workflow_instances WHERE finished_at IS NULL"
            return not (await sql.fetch(left))[0][0]

        try:
            await until(all_ended, BOUND_SEC)
        except TimeoutError:
            left = "SELECT instance_id, status, locked_by FROM workflow_instances WHERE finished_at IS NULL"
            rows = "\n".join(map(str, await sql.fetch(left)))
            raise AssertionError(f"these do not end:\n{rows}") from None
        slots = app._worker.slots
        await until(lambda: not app._worker.executor.tasks and (slots.taken, slots.waiting, slots.idle) == (0, 0, 0))
        assert not app._worker.heartbeat._leases
        assert not app._results._watched
    assert most <= story.max_runs


async def _cancelled(app: App, plan: Member, delay: float) -> None:
    handle = await member.start(plan)
    await asyncio.sleep(delay)
    with suppress(WorkflowNotCancellableError):
        await handle.cancel("the story says so")


def _settings(examples: int) -> settings:
    return settings(
        max_examples=max(1, examples),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        database=None,
        print_blob=True,
    )


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@_settings(EXAMPLES)
@given(story=STORIES)
def test_random_families_all_end_on_few_slots(backend: str, backend_database: BackendDatabase, story: Story) -> None:
    asyncio.run(play(backend, backend_database, story))


@pytest.mark.parametrize("backend", ["postgresql", "mysql"])
@_settings(EXAMPLES // 5)
@given(story=STORIES)
def test_random_families_all_end_on_few_slots_of_a_server(
    backend: str, backend_database: BackendDatabase, story: Story
) -> None:
    asyncio.run(play(backend, backend_database, story))
