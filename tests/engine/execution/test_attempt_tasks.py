"""The code of an activity has a task and a context of its own, and can harm neither the run nor other activities."""

import asyncio
from contextvars import ContextVar
from datetime import timedelta

import pytest

from perdure import (
    ActivityError,
    App,
    Retry,
    WorkflowFailedError,
    activity,
    sleep,
    wait_event,
    workflow,
)
from perdure.hooks import HookEvent, StepCompleted
from tests.engine.waiting import until
from tests.support.storages import Database

SOON = timedelta(seconds=60)
COLOUR: ContextVar[str] = ContextVar("colour", default="none")
seen: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


def _cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@activity(retry=Retry(attempts=1))
async def cancels_itself_late() -> str:
    """Returns before the cancellation takes effect."""
    _cancel_this_task()
    return "in time"


@activity(retry=Retry(attempts=1))
async def always_cancels_itself() -> None:
    _cancel_this_task()
    await asyncio.sleep(0)


@workflow(name="attempt_tasks.self_cancelling")
async def self_cancelling() -> list[str]:
    found = [await cancels_itself_late()]
    try:
        await always_cancels_itself()
    except ActivityError as error:
        found.append(error.error_type)
    return found


async def test_activity_that_cancels_its_own_task_fails_like_any_other(database: Database) -> None:
    async with App(database.url, workflows=[self_cancelling]):
        run = await self_cancelling.start()
        assert await run.result(SOON) == ["in time", "asyncio.exceptions.CancelledError"]


@activity
async def paint(colour: str) -> str:
    before = COLOUR.get()
    COLOUR.set(colour)
    await asyncio.sleep(0)
    assert COLOUR.get() == colour
    return before


@workflow(name="attempt_tasks.painting")
async def painting() -> list[str]:
    found = [await paint("red"), await paint("green")]
    return [*found, *await asyncio.gather(paint("blue"), paint("white"))]


async def test_activities_see_the_context_of_the_app_and_not_of_each_other(database: Database) -> None:
    events: list[str] = []

    def hook(event: HookEvent) -> None:
        if isinstance(event, StepCompleted):
            events.append(COLOUR.get())
            COLOUR.set("of a hook")

    COLOUR.set("of the app")
    async with App(database.url, workflows=[painting], hooks=[hook]):
        COLOUR.set("of the caller")
        assert await (await painting.start()).result(SOON) == ["of the app"] * 4
    assert events == ["of the app"] * 4


@activity
async def slow(name: str) -> str:
    """Takes a moment to end after its cancellation."""
    seen.append(f"{name} began")
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(20):
            await asyncio.sleep(0)
        seen.append(f"{name} ended")
    raise AssertionError("it waits forever")


@workflow(name="attempt_tasks.giving_up")
async def giving_up() -> str:
    try:
        async with asyncio.timeout(0.05):
            await slow("first")
    except TimeoutError:
        seen.append("timeout")
    await wait_event("continue")
    return "done"


async def test_run_suspends_once_a_cancelled_activity_has_ended(database: Database) -> None:
    async with App(database.url, workflows=[giving_up]) as app:
        run = await giving_up.start()

        async def suspended() -> bool:
            return (await run.info()).status == "waiting_for_message" and run.id not in app._worker.executor.tasks

        await until(suspended)
        assert seen == ["first began", "timeout", "first ended"]
        await app.send_event("continue", None, to=run.id)
        assert await run.result(SOON) == "done"


@activity
async def branch(number: int) -> int:
    await asyncio.sleep(0)
    return number


@workflow(name="attempt_tasks.mixed")
async def mixed() -> list[int]:
    """Branches with timers, short waits and results that arrive in any order."""

    async def one(number: int) -> int:
        found = await branch(number)
        if number % 3 == 0:
            await sleep(0.001)
        return found + await branch(number)

    return await asyncio.gather(*(one(number) for number in range(12)))


async def test_results_that_other_tasks_pass_on_meet_timers_and_other_branches(database: Database) -> None:
    async with App(database.url, workflows=[mixed]):
        runs = [await mixed.start() for _ in range(5)]
        for run in runs:
            assert await run.result(SOON) == [2 * number for number in range(12)]


@activity(retry=Retry(attempts=1))
async def unwritable() -> object:
    return object()


@workflow(name="attempt_tasks.unwritable")
async def returns_the_unwritable() -> object:
    return await unwritable()


async def test_result_that_cannot_be_written_fails_the_attempt(database: Database) -> None:
    async with App(database.url, workflows=[returns_the_unwritable]):
        run = await returns_the_unwritable.start()
        with pytest.raises(WorkflowFailedError, match="cannot be written as JSON"):
            await run.result(SOON)
