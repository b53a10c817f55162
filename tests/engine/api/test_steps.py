"""Steps: what a run did, and what it waits for."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest

from perdure import (
    App,
    Retry,
    RunHandle,
    StepInfo,
    StepKind,
    StepStatus,
    WaitKind,
    WorkflowCancelledError,
    WorkflowFailedError,
    activity,
    wait_event,
    workflow,
)
from tests.engine.api.workflows import Order, undone, whole
from tests.engine.waiting import move_clock, until, waiting
from tests.support.storages import Database

SOON = 60


@pytest.fixture(autouse=True)
def forget() -> None:
    undone.clear()


async def waits_for(handle: RunHandle[Any], name: str) -> None:
    """Until a run waits for this alone."""

    async def is_there() -> bool:
        return [each.name for each in (await handle.info()).waiting_for] == [name]

    await until(is_there)


def named(steps: list[StepInfo]) -> dict[str, StepInfo]:
    return {f"{step.kind}:{step.name}": step for step in steps}


@pytest.mark.call("run")
async def test_steps_show_what_a_run_did_and_waits_for(database: Database) -> None:
    order = Order("o-1", Decimal("9.50"))
    async with App(database.url) as app:
        handle = await whole.options(id="a").start(order, 2)
        await waits_for(handle, "api.news")
        steps = named(await handle.steps())
        assert steps["activity:api.reserve"].result == "reserved o-1"
        assert steps["activity:api.reserve"].input == {"order": order}
        assert steps["activity:api.reserve"].started_at is not None
        assert steps["activity:api.flaky"].attempts == 3
        assert (steps["activity:api.flaky"].result, steps["activity:api.flaky"].error) == ("at last", None)
        found = steps["child:api.child"]
        assert (found.status, found.result, found.input) == (StepStatus.COMPLETED, Decimal("9.50"), {"order": order})
        assert steps["value:value"].status is StepStatus.COMPLETED
        assert steps["subscription:subscribe"].status is StepStatus.COMPLETED
        assert steps["send:publish"].status is StepStatus.COMPLETED
        assert steps["timer:timer"].finished_at is not None
        assert steps["channel:receive"].status is StepStatus.WAITING
        await app.publish("api.news", {"n": 1})
        await app.send_event("api.go", "1", to="a")
        await handle.result(SOON)
        steps = named(await handle.steps())
        assert (steps["channel:receive"].status, steps["channel:receive"].result) == (StepStatus.COMPLETED, {"n": 1})
        assert steps["event:wait_event"].result == "1"
        assert {step.status for step in steps.values()} == {StepStatus.COMPLETED}


async def test_steps_show_failed_and_compensated_steps(database: Database) -> None:
    async with App(database.url):
        handle = await whole.start(Order("bad", Decimal(1)))
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        steps = named(await handle.steps())
        failed = steps["child:api.child"]
        assert (failed.status, failed.error and failed.error.message) == (StepStatus.FAILED, "bad order")
        assert steps["compensation:api.reserve"].status is StepStatus.COMPLETED
        assert undone == ["bad"]


async def test_retried_compensations_have_the_name_of_what_they_undo(database: Database) -> None:
    @activity
    async def rent() -> None:
        pass

    @rent.compensation(retry=Retry(attempts=2, initial=timedelta(hours=1)))
    async def return_it(*, result: None) -> None:
        raise ConnectionError("no answer")

    @activity(retry=Retry(attempts=1))
    async def break_down() -> None:
        raise ValueError("out of fuel")

    @workflow(name="api.rental")
    async def rental() -> None:
        await rent()
        await break_down()

    async with App(database.url) as app:
        handle = await rental.start()

        async def undoing() -> StepInfo | None:
            found = [step for step in await handle.steps() if step.kind is StepKind.COMPENSATION]
            return found[0] if found else None

        async def is_retrying() -> bool:
            step = await undoing()
            return step is not None and step.status is StepStatus.RETRYING

        await until(is_retrying)
        retrying = await undoing()
        await move_clock(app, timedelta(hours=1, seconds=1))
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        failed = await undoing()
        assert retrying is not None
        assert failed is not None
        assert (retrying.name, failed.name, failed.status) == ("rent", "rent", StepStatus.FAILED)


@pytest.mark.parametrize("names", [StepKind, StepStatus, WaitKind])
def test_kinds_and_states_have_the_texts_of_their_names(names: type[StrEnum]) -> None:
    assert {each.value: each.name for each in names} == {each.name.lower(): each.name for each in names}


async def test_steps_show_retries_and_timeouts(database: Database) -> None:
    @activity(retry=Retry(attempts=2, initial=timedelta(hours=1)))
    async def later() -> None:
        raise KeyError("no")

    @workflow(name="api.retrying")
    async def retrying() -> None:
        await later()

    async with App(database.url) as app:
        handle = await retrying.options(id="a").start()
        await waiting(app, "a")
        (step,) = await handle.steps()
        assert (step.name, step.kind, step.status, step.attempts) == (
            "later",
            StepKind.ACTIVITY,
            StepStatus.RETRYING,
            2,
        )
        assert step.error is not None
        assert (step.error.type, step.error.message) == ("builtins.KeyError", "'no'")
        (only,) = (await handle.info()).waiting_for
        assert (only.kind, only.name) == (WaitKind.RETRY, "1:later")
        await handle.cancel("not needed")
        with pytest.raises(WorkflowCancelledError):
            await handle.result(SOON)
        (step,) = await handle.steps()
        assert (step.status, step.attempts, step.finished_at) == (StepStatus.CANCELLED, 2, None)
        timed = await whole.start(Order("quick", Decimal(1)))
        with pytest.raises(WorkflowFailedError):
            await timed.result(SOON)
        step = named(await timed.steps())["channel:receive"]
        assert (step.status, step.error and step.error.type) == (StepStatus.FAILED, "TimeoutError")


async def test_step_that_the_body_abandoned_is_cancelled_once_the_run_has_ended(database: Database) -> None:
    @activity
    async def endless() -> None:
        await asyncio.Event().wait()

    @endless.compensation
    async def ended(result: None) -> None:
        pass

    @workflow(name="api.abandoning")
    async def abandoning() -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(endless(), 0.01)
        await wait_event("api.go")

    async with App(database.url) as app:
        handle = await abandoning.options(id="a").start()
        await waits_for(handle, "api.go")
        assert named(await handle.steps())["activity:endless"].status is StepStatus.RUNNING
        await app.send_event("api.go", "1", to="a")
        await handle.result(SOON)
        assert named(await handle.steps())["activity:endless"].status is StepStatus.CANCELLED
