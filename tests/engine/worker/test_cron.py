"""Scheduled (cron) workflows."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from perdure import App, Workflow, workflow
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.errors import LimitError
from perdure.model import limits
from perdure.model.schedules import Schedule, tick_id
from tests.engine.waiting import until
from tests.support.storages import Database

SOON = timedelta(seconds=60)
DAY = timedelta(days=1)


@pytest.fixture
def every_second() -> Iterator[Workflow[[], None]]:
    """It is taken off the list again: other tests serve every workflow there is."""

    @workflow(name="cron.every_second", cron="* * * * * *")
    async def tick() -> None:
        return None

    yield tick
    del WORKFLOWS["cron.every_second"]


@pytest.mark.call("limits")
async def test_each_tick_starts_once(database: Database, every_second: Workflow[[], None]) -> None:
    count = 1 if database.backend == "memory" else 2
    async with AsyncExitStack() as stack, asyncio.timeout(20):
        apps = [await stack.enter_async_context(App(database.url, workflows=[every_second])) for _ in range(count)]
        ids: list[str] = []
        while len(ids) < 3:
            ids = [run.id async for run in apps[0].runs(workflow="cron.every_second")]
            await asyncio.sleep(0.05)
        assert len(set(ids)) == len(ids)
        assert all(id.startswith("cron.every_second@20") and id.endswith("Z") for id in ids)
        for id in ids:
            await apps[0].get(id).result(10)


@pytest.fixture
def daily() -> Iterator[Workflow[[], None]]:
    @workflow(name="cron.daily", cron="0 0 * * *")
    async def tick() -> None:
        return None

    yield tick
    del WORKFLOWS["cron.daily"]


@pytest.mark.call("limits")
async def test_only_the_most_recent_missed_tick_runs(database: Database, daily: Workflow[[], None]) -> None:
    assert daily.schedule is not None
    last = daily.schedule.last_before(datetime.now(UTC))

    async def ids() -> set[str]:
        return {run.id async for run in app.runs(workflow=daily)}

    async def both() -> bool:
        return len(await ids()) == 2

    async with App(database.url, workflows=[daily]) as app:
        await daily.options(id=tick_id(daily.name, last - 5 * DAY)).start()
        await until(both)
        for id in (
            f"cron.daily@{last - 5 * DAY:%Y-%m-%dT00:00:00Z}",
            f"cron.daily@{last:%Y-%m-%dT00:00:00Z}",
        ):
            await app.get(id).result(SOON)
        assert len(await ids()) == 2


@pytest.mark.call("limits")
@pytest.mark.parametrize(
    ("expression", "zone", "moment", "last", "following"),
    [
        ("0 3 * * *", "UTC", "2026-03-01T03:00:00", "2026-03-01T03:00:00", "2026-03-02T03:00:00"),
        ("0 3 * * *", "UTC", "2026-03-01T02:59:59", "2026-02-28T03:00:00", "2026-03-01T03:00:00"),
        ("0 3 * * *", "Europe/Berlin", "2026-07-01T02:00:00", "2026-07-01T01:00:00", "2026-07-02T01:00:00"),
        ("30 12 * * 1", "America/New_York", "2026-11-15T00:00:00", "2026-11-09T17:30:00", "2026-11-16T17:30:00"),
    ],
)
def test_ticks_follow_the_time_zone(expression: str, zone: str, moment: str, last: str, following: str) -> None:
    schedule = Schedule(expression, zone)
    at = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    assert schedule.last_before(at) == datetime.fromisoformat(last).replace(tzinfo=UTC)
    assert schedule.next_after(at) == datetime.fromisoformat(following).replace(tzinfo=UTC)


def test_name_that_leaves_no_space_for_a_tick_is_refused_by_the_decorator() -> None:
    longest = "t" * 179
    assert len(tick_id(longest, datetime.now(UTC))) == limits.INSTANCE_ID_MAX
    try:
        workflow(name=longest, cron="0 9 * * *")(_never)
        workflow(name=f"{longest}t")(_never)  # without a schedule
    finally:
        WORKFLOWS.pop(longest, None)
        WORKFLOWS.pop(f"{longest}t", None)
    with pytest.raises(
        LimitError, match=r"the name of a workflow with cron= must have 1 to 179 characters, .* has 180"
    ):
        workflow(name=f"{longest}t", cron="0 9 * * *")(_never)


@pytest.mark.parametrize(("expression", "zone"), [("61 * * * *", "UTC"), ("* * *", "UTC"), ("* * * * *", "Mars/Base")])
def test_invalid_schedule_is_refused_by_the_decorator(expression: str, zone: str) -> None:
    with pytest.raises(ValueError, match=r"is (unknown|invalid)"):
        workflow(name="cron.never", cron=expression, zone=zone)(_never)
    assert "cron.never" not in WORKFLOWS


async def _never() -> None:
    return None
