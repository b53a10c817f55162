"""Runs with many steps or waits: they work up to the limits, and their cost grows with the number and no faster.

Costs are counted in calls of Python functions, which depend little on the load of the machine.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from benchmarks.statements.counters import counting, settled
from perdure import App, TerminalError, WorkflowFailedError, activity, wait_event, workflow
from perdure.engine.execution.progress import StepsInProgress
from perdure.engine.execution.timed_steps import TimedSteps
from perdure.engine.replay.commands import Execute, Forget, SetTimer
from perdure.engine.replay.steps import TimerStep
from perdure.hooks import HookEvent, RunWaiting
from perdure.model import limits
from perdure.model.states import WAITING
from tests.engine.orders import halve
from tests.engine.waiting import stuck_runs, until, waiting
from tests.support.databases import fresh_postgres
from tests.support.storages import Database

SOON = timedelta(seconds=200)
HOUR = timedelta(hours=1)
FEW, MANY = 50, 400


@workflow(name="large.gather")
async def gather(count: int) -> float:
    return sum(await asyncio.gather(*(halve(number) for number in range(count))))


@workflow(name="large.row")
async def row(count: int) -> int:
    for number in range(count):
        await halve(number)
    return count


@workflow(name="large.row_then_wait")
async def row_then_wait(count: int) -> int:
    for number in range(count):
        await halve(number)
    await wait_event("large.go")
    return count


@workflow(name="large.waits")
async def waits(count: int) -> int:
    for _ in range(count):
        await wait_event("large.go")
    return count


@workflow(name="large.waits_at_once")
async def waits_at_once(count: int) -> int:
    await asyncio.gather(*(wait_event("large.go") for _ in range(count)))
    return count


@workflow(name="large.first")
async def first(count: int) -> int:
    events = [asyncio.ensure_future(wait_event("large.go", timeout=HOUR)) for _ in range(count)]
    _, others = await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    await asyncio.wait(others)
    return len(others)


@activity(name="large.book")
async def book(number: int) -> int:
    return number


@book.compensation
async def cancel_booking(number: int, *, result: int | None) -> None:
    pass


@workflow(name="large.trip")
async def trip(count: int) -> None:
    for number in range(count):
        await book(number)
    raise TerminalError("sold out")


@pytest.mark.timeout(300)
async def test_body_can_gather_twenty_thousand_steps(memory: Database) -> None:
    async with App(memory.url):
        assert await (await gather.start(20_000)).result(SOON) == sum(range(20_000)) / 2


@pytest.mark.timeout(300)
async def test_run_can_wait_with_all_steps_that_it_may_have_open(memory: Database) -> None:
    """Each step has two waits, the run has a timeout, and one event ends all its tasks at once."""
    async with App(memory.url) as app:
        handle = await first.options(timeout=HOUR).start(limits.STEPS_MAX)
        await until(lambda: _is_waiting_or_stuck(app, handle.id), SOON.total_seconds())
        assert await stuck_runs(app) == []
        await app.send_event("large.go", 1, to=handle.id)
        assert await handle.result(SOON) == limits.STEPS_MAX - 1


async def _is_waiting_or_stuck(app: App, id: str) -> bool:
    info = await app.get(id).info()
    return info.status in WAITING or info.stuck is not None


class Calls:
    """Counts the calls of Python functions in this thread while it is open."""

    def __init__(self) -> None:
        self.count = 0

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: object, event: str, argument: object) -> None:
        self.count += event == "call"


Play = Callable[[str, int, Calls], Awaitable[None]]


async def _gather(url: str, count: int, calls: Calls) -> None:
    async with App(url), calls.counted():
        await (await gather.start(count)).result(SOON)


async def _row(url: str, count: int, calls: Calls) -> None:
    async with App(url), calls.counted():
        await (await row.start(count)).result(SOON)


async def _resumed(url: str, count: int, calls: Calls) -> None:
    async with App(url, max_cached_runs=0) as app:  # it keeps nothing in memory
        handle = await row_then_wait.start(count)
        await waiting(app, handle.id)
        async with calls.counted():
            await app.send_event("large.go", 1, to=handle.id)
            await handle.result(SOON)


async def _waits(url: str, count: int, calls: Calls) -> None:
    is_waiting = asyncio.Event()

    def note(event: HookEvent) -> None:
        if isinstance(event, RunWaiting):
            is_waiting.set()

    async with App(url, hooks=[note]) as app, calls.counted():
        handle = await waits.start(count)
        for _ in range(count):
            await is_waiting.wait()
            is_waiting.clear()
            await app.send_event("large.go", 1, to=handle.id)
        await handle.result(SOON)


async def _waits_at_once(url: str, count: int, calls: Calls) -> None:
    async with App(url) as app:
        handle = await waits_at_once.start(count)
        await waiting(app, handle.id)
        async with calls.counted():
            await asyncio.gather(*(app.send_event("large.go", 1, to=handle.id) for _ in range(count)))
            await handle.result(SOON)


async def _rollback(url: str, count: int, calls: Calls) -> None:
    async with App(url), calls.counted():
        with pytest.raises(WorkflowFailedError, match="sold out"):
            await (await trip.start(count)).result(SOON)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("play", [_gather, _row, _resumed, _waits, _waits_at_once, _rollback])
async def test_cost_of_a_step_does_not_grow_with_their_number(memory: Database, play: Play) -> None:
    few, many = Calls(), Calls()
    await play(memory.url, FEW, few)
    await play(memory.url, MANY, many)
    assert many.count / MANY <= 1.3 * few.count / FEW


@workflow(name="large.news")
async def news() -> int:
    return int((await wait_event("large.news")).data)


async def _rows_read_by_an_event_to(url: str, count: int) -> float:
    """Return the rows that the database reads for each of so many runs that one event resumes."""
    async with counting(url) as counters, App(url) as app:
        handles = [await news.start() for _ in range(count)]
        await waiting(app, *(handle.id for handle in handles))
        before = await settled(counters, "rows_read")
        await app.send_event("large.news", 1)
        assert [await handle.result(SOON) for handle in handles] == [1] * count
        return ((await settled(counters, "rows_read"))["rows_read"] - before["rows_read"]) / count


async def test_event_to_many_runs_reads_few_rows_for_each(postgres_url: str) -> None:
    """Even before the database has statistics of its tables: those of a database that was emptied would mislead it."""
    async with fresh_postgres(postgres_url) as url:
        rows = await _rows_read_by_an_event_to(url, 300)
    assert rows < 100, rows


def test_starting_and_ending_steps_takes_time_in_proportion_to_their_number() -> None:
    """Calls do not show what a dictionary or a list does inside."""

    def start_and_end(count: int) -> float:
        steps = StepsInProgress()
        timed = TimedSteps(steps)
        timer: Any = _Delay()
        for number in range(count):
            step: Any = _Activity(str(number))
            steps.apply(Execute(step))
            steps.apply(SetTimer(TimerStep(f"{number}:timer", timer, has_row=False)))
        assert timed.any_short()
        before = time.thread_time()
        assert len(steps.take_ready()) == count
        for number in range(count):
            steps.apply(Forget(f"{number}:timer"))
            timed.any_short()
        return (time.thread_time() - before) / count

    few = min(start_and_end(2000) for _ in range(3))
    assert start_and_end(64_000) < 5 * few


class _Delay:
    """Stands for a timer of the body's loop."""

    delay = 0.5


class _Activity:
    """Stands for the step of an activity."""

    attempt = 1

    def __init__(self, id: str) -> None:
        self.id = id
