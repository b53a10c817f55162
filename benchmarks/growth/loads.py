"""What grows: runs, steps, waits and events of so many, each the first in its process; prints the figures as JSON.

    python benchmarks/growth/loads.py broadcast sqlite:///bench.db 1000

`value` is the time for one of them, or what the unit of the curve says.
"""

import asyncio
import json
import sys
import time

from benchmarks.engine import measures
from benchmarks.engine.measures import Figures, add, in_groups, parked, released, steps, steps_then_wait, until_waiting
from benchmarks.growth import processes
from perdure import App, send_event, wait_event, workflow
from perdure.hooks import HookEvent, RunWaiting

WARM_UP = 50  # steps


@workflow
async def wait_for_news() -> int:
    return int((await wait_event("news")).data)


@workflow
async def gather(count: int) -> int:
    return sum(await asyncio.gather(*(add(number) for number in range(count))))


@workflow
async def many_waits(count: int) -> int:
    for _ in range(count):
        await wait_event("go")
    return count


async def park(url: str, size: int) -> Figures:
    """Start runs that wait for an event, until all of them wait."""
    async with App(url):
        await _warm_up()
        return {"value": await parked(size) * 1e6}


async def where(url: str, size: int) -> Figures:
    """Send each waiting run an event that it selects with `where=`, and compare with events sent `to=` a run."""
    found = await measures.where(url, size)
    return {"value": found["where_sec"] / size * 1e6, "times_to": found["value"], "to_us": found["to_sec"] / size * 1e6}


async def release(url: str, size: int) -> Figures:
    """Send each waiting run an event `to=` it, until all runs have ended."""
    async with App(url):
        await _warm_up()
        return {"value": await released(steps_then_wait, size, own=False) / size * 1e6}


async def broadcast(url: str, size: int) -> Figures:
    """Send one event to so many waiting runs, until all of them have ended."""
    async with App(url):
        await _warm_up()
        handles = await in_groups(wait_for_news.start() for _ in range(size))
        await until_waiting(handles)
        before = time.perf_counter()
        await send_event("news", 1)
        await asyncio.gather(*(handle.result() for handle in handles))
        return _per_item(before, size)


async def gathered(url: str, size: int) -> Figures:
    """Execute one run with so many steps at once."""
    async with App(url):
        await _warm_up()
        before = time.perf_counter()
        await (await gather.start(size)).result()
        return _per_item(before, size)


async def long(url: str, size: int) -> Figures:
    """Execute one run with so many steps, one after the other."""
    async with App(url):
        await _warm_up()
        before = time.perf_counter()
        await (await steps.start(size)).result()
        return _per_item(before, size)


async def waits(url: str, size: int) -> Figures:
    """Execute one run with so many waits, each for an event that is sent once the run waits."""
    is_waiting = asyncio.Event()

    def note(event: HookEvent) -> None:
        if isinstance(event, RunWaiting):
            is_waiting.set()

    async with App(url, hooks=[note]):
        await _warm_up()
        handle = await many_waits.start(size)
        before = time.perf_counter()
        for number in range(size):
            await is_waiting.wait()
            is_waiting.clear()
            await send_event("go", number, to=handle.id)
        await handle.result()
        return _per_item(before, size)


async def _warm_up() -> None:
    """Load code and fill caches."""
    await (await steps.start(WARM_UP)).result()


def _per_item(before: float, size: int) -> Figures:
    return {"value": (time.perf_counter() - before) / size * 1e6}


LOADS = {
    "park": park,
    "where": where,
    "release": release,
    "broadcast": broadcast,
    "gather": gathered,
    "steps": long,
    "waits": waits,
    "memory": measures.memory,
    "memory-parked": measures.memory_parked,
    "interrupted": processes.interrupted,
    "workers": processes.workers,
}


if __name__ == "__main__":
    name, url, size = sys.argv[1:]
    print(json.dumps(asyncio.run(LOADS[name](url, int(size)))))
