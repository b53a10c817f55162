"""What is left in memory of runs that have ended."""

import asyncio
import gc
import weakref
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from perdure import App, activity, workflow
from perdure.engine.execution.run import Run
from perdure.engine.worker.executor import RunExecutor
from perdure.errors import WorkflowFailedError
from tests.engine.waiting import until
from tests.support.storages import Database

SOON = timedelta(seconds=30)


@activity
async def pass_on(number: int) -> int:
    return number


@workflow(name="memory.ending")
async def ending(number: int) -> int:
    await asyncio.gather(*(pass_on(n) for n in range(3)))
    if number < 0:
        raise ValueError(number)
    return number


@pytest.mark.parametrize("number", [1, -1])
async def test_run_that_has_ended_is_freed_without_the_garbage_collector(
    memory: Database, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Cycles would be collected in full collections, which take longer than the run."""
    parts: list[weakref.ref[object]] = []
    take_up = RunExecutor.take_up

    def noted(self: RunExecutor, *args: Any, **options: Any) -> Any:
        run = take_up(self, *args, **options)
        assert isinstance(run, Run)
        parts.extend(weakref.ref(part) for part in (run, run.replayer, run.replayer._body, run.replayer._body.loop))
        return run

    monkeypatch.setattr(RunExecutor, "take_up", noted)
    async with App(memory.url):
        gc.collect()
        gc.disable()
        try:
            with suppress(WorkflowFailedError):
                await (await ending.start(number)).result(SOON)
            await until(lambda: not any(part() for part in parts))
        finally:
            gc.enable()
    assert len(parts) == 4
