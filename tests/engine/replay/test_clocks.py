"""The time that a body sees is that of the database, and it advances while steps execute."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import App, RunHandle, WorkflowStatus, activity, now, sleep_until, wait_event, workflow
from perdure.engine.history.digests import SIZE, Call, stamp, stamped
from perdure.storage.stores import shift_clock
from tests.engine.waiting import until, waiting
from tests.support.storages import Database, storage_of

HOUR = timedelta(hours=1)
SOON = timedelta(minutes=5)  # a loaded machine is not off by that


@workflow(name="clocks.sleeper")
async def sleeper(until: datetime) -> datetime:
    seen = now()
    await sleep_until(until)
    return seen


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_now_and_sleep_until_use_the_clock_of_the_database(database: Database, ahead: timedelta) -> None:
    """Otherwise a sleep of 30 minutes would end at once on a worker whose clock is an hour ahead."""
    async with App(database.url) as app:
        shift_clock(storage_of(app), -ahead)  # the same as a worker's clock that is off by `ahead`
        await app._worker.host.database_clock.set()
        time = datetime.now(UTC) - ahead
        later = await sleeper.options(id="later").start(time + HOUR / 2)
        assert await waiting(app, later.id) is WorkflowStatus.WAITING_FOR_TIMER
        assert len(await app._storage.get_waits([later.id])) == 1
        seen = await (await sleeper.start(time - HOUR / 2)).result(20)
        assert abs(seen - time) < SOON


@activity
async def takes_an_hour() -> None:
    passed.append(HOUR)  # as far as the run can tell


@activity(transactional=True)
async def transacts_for_an_hour() -> None:
    passed.append(HOUR)


passed: list[timedelta] = []
ACTS = {"activity": takes_an_hour, "transactional": transacts_for_an_hour}


@workflow(name="clocks.deadline")
async def deadline(kind: str) -> list[float]:
    loop = asyncio.get_running_loop()
    end = loop.time() + 1.5 * HOUR.total_seconds()
    times = [loop.time()]
    await ACTS[kind]()
    times.append(loop.time())
    try:
        async with asyncio.timeout_at(end):
            await wait_event("clocks.never")
    except TimeoutError:
        times.append(loop.time())
    await takes_an_hour()
    times.append(loop.time())
    try:
        async with asyncio.timeout_at(end):  # over already
            await wait_event("clocks.never")
    except TimeoutError:
        times.append(loop.time())
    await wait_event("clocks.go")
    return times


@pytest.mark.parametrize("kind", ACTS)
async def test_deadlines_of_loop_time_include_the_time_of_activities(
    database: Database, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's time must not stand still during activities."""
    passed.clear()
    async with App(database.url, max_cached_runs=0) as app:
        now = app._worker.host.database_clock.now
        monkeypatch.setattr(app._worker.host.database_clock, "now", lambda: sum(passed, now()))
        handle = await deadline.options(id="deadline").start(kind)
        await waiting(app, handle.id)
        ((due, made),) = await app._storage.db().fetch(
            "SELECT expires_at, created_at FROM workflow_timer_subscriptions WHERE instance_id = 'deadline'"
        )
        left = _moment(due) - _moment(made)
        assert abs(left - HOUR / 2) < SOON  # what the activity left of an hour and a half
        await app._storage.db().execute("UPDATE workflow_timer_subscriptions SET expires_at = created_at")
        app._worker.wake()
        await until(lambda: _has_step(handle, "takes_an_hour", 1 if kind == "transactional" else 2))
        await waiting(app, handle.id)
        await app.send_event("clocks.go", None, to=handle.id)
        times = await handle.result(20)  # from a replay of the whole
        hour, soon = HOUR.total_seconds(), SOON.total_seconds()
        assert times[0] == 0.0
        assert abs(times[1] - hour) < soon
        assert times[2] == 1.5 * hour
        assert times[3] > 2 * hour - soon
        assert times[3] == times[4]


def _moment(value: datetime | str) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


async def _has_step(handle: RunHandle[Any], name: str, count: int) -> bool:
    steps = [row async for row in handle.history() if row.step.endswith(f":{name}")]
    return len(steps) == count


def test_rows_without_a_time_do_not_move_the_clock() -> None:
    """Histories of earlier versions replay as they did."""
    assert stamped(None) == stamped(b"") == stamped(b"\x01" * SIZE) == stamped(b"x" * 17) == 0.0
    assert stamped(Call(1).digest + stamp(12.5)) == 12.5
    assert stamped(Call(1).digest + stamp(-1)) == 0.0
