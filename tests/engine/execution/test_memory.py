"""What is left in memory of runs that have ended."""

import asyncio
import gc
import logging
from contextlib import suppress
from datetime import timedelta

import pytest

from perdure import App, activity, workflow
from perdure.engine.execution.run import Run
from perdure.engine.replay.body import Body
from perdure.engine.replay.loop import BodyLoop
from perdure.engine.replay.replayer import Replayer
from perdure.errors import WorkflowFailedError
from tests.engine.waiting import until
from tests.support.storages import Database

SOON = timedelta(seconds=60)


@activity
async def pass_on(number: int) -> int:
    return number


@workflow(name="memory.ending")
async def ending(number: int) -> int:
    await asyncio.gather(*(pass_on(n) for n in range(3)))
    if number < 0:
        raise ValueError(number)
    return number


def count_parts() -> int:
    """Return how many parts of runs are in memory, without those in cycles that were left before."""
    # By type(), because some objects of other libraries compute their __class__.
    return sum(issubclass(type(each), Run | Replayer | Body | BodyLoop) for each in gc.get_objects())


@pytest.mark.parametrize("number", [1, -1])
async def test_run_that_has_ended_is_freed_without_the_garbage_collector(memory: Database, number: int) -> None:
    """Cycles would be collected in full collections, which take longer than the run."""
    async with App(memory.url):
        gc.collect()
        gc.disable()
        try:
            before = count_parts()
            run = await ending.start(number)
            assert count_parts() == before + 4
            with suppress(WorkflowFailedError):
                await run.result(SOON)
            await until(lambda: count_parts() == before)
        finally:
            gc.enable()


async def fail() -> None:
    raise ValueError("lost")


@workflow(name="memory.careless")
async def careless() -> bool:
    task = asyncio.create_task(fail())
    await pass_on(1)
    return task.done()


async def test_error_that_a_body_never_awaited_is_logged_when_the_run_is_freed(
    memory: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(memory.url):
        gc.disable()
        try:
            with caplog.at_level(logging.WARNING, "perdure.engine"):
                assert await (await careless.start()).result(SOON)
                await until(lambda: "a task failed, and the body did not await it: ValueError: lost" in caplog.text)
        finally:
            gc.enable()
