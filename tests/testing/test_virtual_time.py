"""The clock of a TestApp, on every database: it jumps while a test waits, and everything durable follows it."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from perdure import (
    Event,
    Retention,
    Retry,
    RunHandle,
    WorkflowCancelledError,
    WorkflowFailedError,
    activity,
    now,
    send_event,
    sleep,
    wait_event,
    workflow,
)
from perdure.errors import EngineError, StalledError
from perdure.model.states import WorkflowStatus
from perdure.testing import TestApp, TestClock
from tests.engine.waiting import status_of
from tests.support.programs import no_other_program
from tests.testing.kit import DATABASES, url_of

DAY = timedelta(days=1)
MONTH = 30 * DAY
SLACK = timedelta(minutes=1)  # real time that passes on a busy machine


@pytest.fixture(params=DATABASES)
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TestApp]:
    """An open TestApp on each database."""
    async with TestApp(url_of(request.param, request, tmp_path)) as app:
        yield app


@pytest.fixture
async def memory() -> AsyncIterator[TestApp]:
    """An open TestApp in memory."""
    async with TestApp() as app:
        yield app


ATTEMPTS: list[datetime] = []


@activity(name="kit.flaky", retry=Retry(attempts=4, initial=60, jitter=0))
async def flaky(failures: int) -> int:
    ATTEMPTS.append(datetime.now(UTC))
    if len(ATTEMPTS) <= failures:
        raise ValueError("not yet")
    return len(ATTEMPTS)


@workflow(name="kit.patient")
async def patient(failures: int) -> tuple[int, datetime, datetime]:
    began = now()
    await sleep(MONTH)
    attempts = await flaky(failures)
    return attempts, began, now()


async def test_sleep_of_a_month_and_three_retries_take_no_real_time(app: TestApp) -> None:
    ATTEMPTS.clear()
    before, real = app.clock.now, time.monotonic()
    attempts, began, ended = await patient(3)
    assert attempts == 4
    pauses = timedelta(seconds=60 + 120 + 240)
    assert MONTH + pauses <= ended - began < MONTH + pauses + SLACK
    assert MONTH + pauses <= app.clock.now - before < MONTH + pauses + SLACK
    assert time.monotonic() - real < 60


@activity(name="kit.short", retry=Retry(attempts=3, initial=0.5, jitter=0))
async def short_pauses() -> int:
    ATTEMPTS.append(datetime.now(UTC))
    if len(ATTEMPTS) < 3:
        raise ValueError("not yet")
    return len(ATTEMPTS)


@workflow(name="kit.many_short")
async def many_short() -> int:
    for _ in range(60):
        await sleep(0.9)
    return await short_pauses()


async def test_many_short_timers_keep_the_lease(memory: TestApp, caplog: pytest.LogCaptureFixture) -> None:
    ATTEMPTS.clear()
    before = memory.clock.now
    run = await many_short.start()
    assert await run.result() == 3
    assert memory.clock.now - before >= timedelta(seconds=60 * 0.9 + 0.5 + 0.5)
    assert not [each for each in caplog.records if "lease" in each.getMessage()]


@workflow(name="kit.approval")
async def approval(order: str) -> str:
    try:
        event: Event[str] = await wait_event("kit.approved", where={"order": order}, timeout=3 * DAY)
    except TimeoutError:
        return "too late"
    return str(event.data["order"])  # type: ignore[index]


async def test_timeout_of_a_wait_passes_while_the_test_waits(app: TestApp) -> None:
    before = app.clock.now
    assert await approval("A-1") == "too late"
    assert 3 * DAY <= app.clock.now - before < 3 * DAY + SLACK


async def _until_waiting(run: RunHandle[object]) -> None:
    while not (await run.info()).waiting_for:  # noqa: ASYNC110 # nothing is notified of that
        await asyncio.sleep(0.01)


async def test_clock_does_not_jump_while_the_test_does_something_else(app: TestApp) -> None:
    before = app.clock.now
    run = await approval.start("A-1")
    await _until_waiting(run)
    await send_event("kit.approved", {"order": "A-1"})
    assert await run.result() == "A-1"
    assert app.clock.now - before < SLACK


async def test_advance_moves_to_each_due_moment(app: TestApp) -> None:
    @workflow(name="kit.steps")
    async def steps() -> list[datetime]:
        times = []
        for _ in range(3):
            await sleep(600)
            times.append(now())
        return times

    began = app.clock.now
    run = await steps.start()
    await app.clock.advance(timedelta(minutes=15))
    assert (await run.info()).status == "waiting_for_timer"
    await app.clock.advance(timedelta(minutes=16))
    assert (await run.info()).status == "completed"
    for number, at in enumerate(await run.result(), 1):
        assert timedelta(0) <= at - began - number * timedelta(minutes=10) < SLACK


async def test_frozen_clock_stands_still_until_it_is_advanced(app: TestApp) -> None:
    app.clock.freeze()
    frozen = app.clock.now

    @workflow(name="kit.frozen")
    async def read() -> tuple[datetime, datetime]:
        before = now()
        await sleep(60)
        return before, now()

    run = await read.start()
    await app.clock.advance(59)
    assert (await run.info()).status == "waiting_for_timer"
    assert app.clock.now == frozen + timedelta(seconds=59)
    await app.clock.advance(1)
    assert await run.result() == (frozen, frozen + timedelta(seconds=60))
    assert app.clock.frozen
    app.clock.unfreeze()
    assert await approval("A-2") == "too late"


async def test_result_with_a_timeout_follows_the_clock(app: TestApp) -> None:
    before = app.clock.now
    run = await approval.start("A-1")
    with pytest.raises(TimeoutError, match="has not ended after 60 s"):
        await run.result(timeout=60)
    assert timedelta(seconds=60) <= app.clock.now - before < 2 * SLACK


async def test_deadline_of_a_run_follows_the_clock(app: TestApp) -> None:
    before = app.clock.now
    run = await patient.options(timeout=5 * DAY).start(0)
    with pytest.raises(WorkflowCancelledError, match="timeout exceeded"):
        await run.result()
    assert 5 * DAY <= app.clock.now - before < 5 * DAY + SLACK


@activity(name="kit.hanging", retry=Retry(attempts=1), timeout=30)
async def hanging() -> None:
    await asyncio.Event().wait()


@workflow(name="kit.hangs")
async def hangs() -> None:
    await hanging()


async def _until_executing(app: TestApp) -> None:
    while not app.observations.is_executing:  # noqa: ASYNC110 # nothing is notified of that
        await asyncio.sleep(0.001)


async def test_timeout_of_a_hanging_activity_passes_by_advance(app: TestApp) -> None:
    run = await hangs.start()
    await _until_executing(app)
    await app.clock.advance(15)  # the rest is for the time that passes on a busy machine
    assert (await run.info()).status == "running"
    await app.clock.advance(15)
    with pytest.raises(WorkflowFailedError):
        await run.result()


@activity(name="kit.waits_for_real", timeout=MONTH)
async def waits_for_real(seconds: float) -> None:
    await asyncio.sleep(seconds)


@workflow(name="kit.real")
async def real_code() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(waits_for_real(0.2))
        group.create_task(sleep(MONTH))


async def test_code_of_an_activity_is_not_skipped(memory: TestApp) -> None:
    before = memory.clock.now
    run = await real_code.start()
    waiting = asyncio.create_task(run.result())
    await _until_executing(memory)
    await asyncio.sleep(0.05)
    assert memory.clock.now - before < SLACK
    await waiting
    assert memory.clock.now - before >= MONTH


async def test_leases_outlast_a_jump_during_an_activity(app: TestApp, caplog: pytest.LogCaptureFixture) -> None:
    release = asyncio.Event()

    @activity(name="kit.long", timeout=10 * MONTH)
    async def long() -> int:
        await release.wait()
        return 1

    @workflow(name="kit.takes_long")
    async def takes_long() -> int:
        first = await long()
        return first + await long()

    run = await takes_long.start()
    await _until_executing(app)
    await app.clock.advance(MONTH)
    info = await run.info()
    assert info.worker == app.worker_id
    assert info.lease_expires_at is not None
    assert info.lease_expires_at > app.clock.now
    release.set()
    assert await run.result() == 2
    assert not [each for each in caplog.records if "lease" in each.getMessage()]


async def test_retention_follows_the_clock(tmp_path: Path) -> None:
    async with TestApp(retention=Retention(finished=7 * DAY, every=DAY)) as app:
        run = await approval.start("A-1")
        await run.cancel("not needed")
        with pytest.raises(WorkflowCancelledError):
            await run.result()
        await app.clock.advance(6 * DAY)
        assert await app.runs().count() == 1
        await app.clock.advance(3 * DAY)
        assert await app.runs().count() == 0


async def test_advance_runs_every_tick_of_a_schedule() -> None:
    ticks: list[datetime] = []

    with no_other_program():  # so that no other test serves it

        @workflow(name="kit.hourly", cron="0 * * * *", zone="UTC")
        async def hourly() -> None:
            ticks.append(now())

    clock = TestClock(datetime(2030, 3, 1, 11, 30, tzinfo=UTC))
    async with TestApp(clock=clock, workflows=[hourly]):
        await clock.advance(timedelta(hours=3))
    # The tick before the start runs, too, as after every start of a worker.
    assert [each.hour for each in ticks] == [11, 12, 13, 14]


async def test_clock_starts_at_a_given_time(tmp_path: Path) -> None:
    start = datetime(2040, 2, 28, 12, tzinfo=UTC)

    @workflow(name="kit.reads_clock")
    async def reads_clock() -> datetime:
        return now()

    for url in (None, f"sqlite:///{tmp_path / 'later.db'}"):
        clock = TestClock(start)
        async with TestApp(url, clock=clock):
            assert timedelta(0) <= await reads_clock() - start < SLACK
    with pytest.raises(ValueError, match="with a time zone"):
        TestClock(datetime(2040, 1, 1))


async def test_two_apps_have_independent_time() -> None:
    async with TestApp() as first, TestApp() as second:
        before = datetime.now(UTC)
        await first.clock.advance(MONTH)
        assert first.clock.now - before >= MONTH
        assert second.clock.now - before < SLACK
        assert datetime.now(UTC) - before < SLACK


async def test_run_until_idle_lets_all_runs_end(memory: TestApp) -> None:
    runs = [await approval.start(f"A-{number}") for number in range(3)]
    await memory.clock.run_until_idle()
    assert [(await run.info()).status for run in runs] == ["completed"] * 3
    memory.clock.freeze()
    with pytest.raises(EngineError, match="frozen"):
        await memory.clock.run_until_idle()


@workflow(name="kit.for_ever")
async def for_ever() -> None:
    await wait_event("kit.never")


async def test_wait_for_a_run_that_cannot_end_fails_and_names_what_it_waits_for() -> None:
    async with TestApp(stall_timeout=0.2) as app:
        run = await for_ever.options(id="stalled-1").start()
        with pytest.raises(StalledError, match=r"run 'stalled-1' \(kit.for_ever\) cannot end: it waits for event") as e:
            await run.result()
        assert "'kit.never' without a timeout" in str(e.value)
        await send_event("kit.never", None)
        await run.result()
        assert app.clock.now - datetime.now(UTC) < SLACK


async def test_stalled_wait_fails_on_every_database(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for database in DATABASES[1:]:
        async with TestApp(url_of(database, request, tmp_path), stall_timeout=0.5):
            with pytest.raises(StalledError, match=r"event 'kit.never' without"):
                await for_ever()


async def test_event_of_a_concurrent_task_ends_a_wait_that_would_stall() -> None:
    async with TestApp(stall_timeout=30):
        run = await for_ever.start()
        waiting = asyncio.create_task(run.result())
        await status_of(run, WorkflowStatus.WAITING_FOR_MESSAGE)
        await send_event("kit.never", None)
        await waiting


@workflow(name="kit.broken")
async def broken() -> None:
    raise_outside = asyncio.get_running_loop().create_future()
    await raise_outside  # a deadlock: the run is stuck, and retried for ever


async def test_stuck_run_fails_the_wait_with_the_reason() -> None:
    async with TestApp():
        with pytest.raises(StalledError, match=r"makes no progress.*deadlock"):
            await broken()


async def test_activity_that_waits_for_another_run_does_not_stop_the_clock(memory: TestApp) -> None:
    @activity(name="kit.asks")
    async def asks() -> str:
        return await (await approval.start("A-1")).result()

    @workflow(name="kit.asker")
    async def asker() -> str:
        return await asks()

    assert await asker() == "too late"


async def test_test_app_takes_the_settings_of_an_app() -> None:
    app = TestApp(max_runs=3, worker_id="me")
    assert app.worker_id == "me"
    with pytest.raises(ValueError, match="max_runs"):
        TestApp(max_runs=0)
    with pytest.raises(ValueError, match="stall_timeout"):
        TestApp(stall_timeout=0)
