"""Sleeps and timeouts are stored, and resume in another worker."""

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from perdure import App, WorkflowStatus, activity, now, random, set_state, sleep, sleep_until, timeout, uuid4, workflow
from perdure.storage.stores import shift_clock
from tests.engine.orders import charge
from tests.engine.waiting import move_clock, stuck_runs, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
SHORT = timedelta(seconds=1)
seen: list[Any] = []
gates: list[asyncio.Event] = []
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()
    gates.clear()


@activity
async def note(what: str) -> str:
    seen.append(what)
    return what


@workflow(name="timers.sleeping")
async def sleeping(seconds: float) -> str:
    await sleep(seconds)
    return await note("awake")


async def _slept(database: Database) -> None:
    """A run whose timer is due, and no worker anywhere."""
    async with App(database.url, workflows=[sleeping]) as app:
        await sleeping.options(id="a").start(3600)
        await waiting(app, "a")
    storage = await database.storage()
    shift_clock(storage, timedelta(hours=1))
    assert await storage.find_expired_timers()
    assert await storage.fire_timers([("a", "1:timer")]) == [True]


@pytest.mark.pitfall(10)
async def test_crash_after_a_timer_fired_does_not_strand_its_run(shared: Database) -> None:
    await _slept(shared)
    storage = await shared.storage()
    assert await storage.try_acquire_lock("a", "dead#0", 0.1) is not None  # took it, and died
    async with App(shared.url, lease=SHORT) as app:
        assert await app.get("a").result(SOON) == "awake"
        assert [event.step async for event in app.history("a")] == ["1:timer", "2:note"]
    assert seen == ["awake"]


@pytest.mark.pitfall(28)
async def test_sleep_is_not_truncated_to_whole_seconds(database: Database) -> None:
    async with App(database.url):
        began = time.monotonic()
        handle = await sleeping.start(1.25)
        assert await handle.result(SOON) == "awake"
        assert time.monotonic() - began >= 1.25


@workflow(name="timers.times")
async def times() -> list[str]:
    began, found = now(), []
    await sleep_until(began + DAY)
    found.append("on time" if now() - began >= DAY else "early")
    await sleep_until(began)  # long over
    try:
        async with timeout(timedelta(seconds=0.05)):
            await sleep(DAY)
    except TimeoutError:
        found.append("too long")
    try:
        await sleep_until(datetime(2026, 1, 1))
    except ValueError:
        found.append("in which zone?")
    return found


@pytest.mark.call("time")
async def test_sleep_until_and_timeout_use_the_time_of_the_run(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        handle = await times.start()
        await waiting(app, handle.id)
        await move_clock(app, DAY - timedelta(milliseconds=100))
        assert await handle.result(SOON) == ["on time", "too long", "in which zone?"]


@workflow(name="timers.values")
async def values() -> list[str]:
    taken = [now().isoformat(), str(random()), str(uuid4())]
    set_state({"phase": "sleeping"})
    await sleep(DAY)
    await charge("values", 1.0)
    return taken


@pytest.mark.call("time")
@pytest.mark.behaviour("background tasks")
async def test_values_are_recorded_and_a_long_sleep_is_stored(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        handle = await values.start()
        await waiting(app, handle.id)
        assert (await handle.info()).status is WorkflowStatus.WAITING_FOR_TIMER
        assert await handle.state() == {"phase": "sleeping"}
        await move_clock(app, DAY)
        taken = await handle.result(SOON)
        rows = [event async for event in handle.history()]
        assert [row.kind for row in rows] == ["State", "TimerExpired", "ActivityCompleted"]
        assert taken[2] in str(rows[0].data)
        assert not await stuck_runs(app)


@activity
async def busy() -> None:
    gates.append(asyncio.Event())
    await gates[-1].wait()


@workflow(name="timers.beside")
async def beside() -> None:
    """Sleep for a short and a long time beside an activity, for which the run keeps its lease."""
    sleeps = [asyncio.create_task(sleep(span)) for span in (SHORT, DAY)]
    await busy()
    for each in sleeps:
        each.cancel()
    await asyncio.gather(*sleeps, return_exceptions=True)


async def test_sleep_of_a_second_is_not_stored(memory: Database) -> None:
    """The run keeps its lease for it, so the row of a timer would only be a cost."""
    async with App(memory.url) as app:
        handle = await beside.start()
        stored: list[str] = []

        async def is_stored() -> bool:
            rows = await app._storage.db().fetch("SELECT timer_id FROM workflow_timer_subscriptions")
            stored[:] = [row[0] for row in rows]
            return bool(stored)

        await until(is_stored)
        await until(lambda: bool(gates))
        gates[0].set()
        await handle.result(SOON)
    assert stored == ["2.1:timer"]
