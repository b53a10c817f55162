"""A worker keeps little in memory of a run that waits."""

import asyncio
import gc
import tracemalloc
from pathlib import Path

import pytest

from perdure import App, wait_event, workflow
from perdure.hooks import HookEvent, RunWaiting
from tests.engine.waiting import until

FEW, MANY = 300, 1500


@workflow(name="memory.waits")
async def waits(number: int) -> int:
    return number + int((await wait_event("go")).data)


class Waiting:
    """Counts the runs that wait, as a hook."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: HookEvent) -> None:
        self.count += isinstance(event, RunWaiting)

    async def grow(self, more: int) -> int:
        """Start so many more runs, wait until all of them only wait, and return the memory of this process."""
        awaited = self.count + more
        for _ in range(0, more, 100):
            await asyncio.gather(*(waits.start(number) for number in range(100)))

        async def settled() -> bool:
            executing = [task for task in asyncio.all_tasks() if task.get_name().startswith("run ")]
            return self.count == awaited and not executing

        await until(settled)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize(("cached", "most"), [(10_000, 4000), (0, 300)])
async def test_memory_of_a_waiting_run_is_bounded(tmp_path: Path, cached: int, most: int) -> None:
    waiting = Waiting()
    tracemalloc.start()
    try:
        async with App(f"sqlite:///{tmp_path}/runs.db", max_cached_runs=cached, hooks=[waiting], workflows=[waits]):
            few = await waiting.grow(FEW)  # whatever else there is, is there from here on
            many = await waiting.grow(MANY)
    finally:
        tracemalloc.stop()
    assert (many - few) / MANY < most
