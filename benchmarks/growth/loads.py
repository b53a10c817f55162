"""What grows: runs, steps, waits and events of so many, each the first in its process; prints the figures as JSON.

    python benchmarks/growth/loads.py broadcast sqlite:///bench.db 1000

`value` is the time for one of them, or what the unit of the curve says.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from benchmarks.engine import measures
from benchmarks.engine.measures import (
    GROUP,
    Figures,
    add,
    cpu_sec,
    in_groups,
    released,
    steps,
    steps_then_wait,
    until_waiting,
)
from benchmarks.growth import processes
from perdure import App, TerminalError, WorkflowFailedError, activity, send_event, wait_event, workflow
from perdure.hooks import HookEvent, RunWaiting

WARM_UP = 50  # steps
CACHED = 0  # by default, few runs stay in memory and many are evicted and replayed, which would look like growth
LEASE_SEC = 120  # on a slow machine no lease expires between two looks


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


@workflow
async def waits_at_once(count: int) -> int:
    await asyncio.gather(*(wait_event("go") for _ in range(count)))
    return count


@activity(name="growth.book")
async def book(number: int) -> int:
    return number


@book.compensation
async def cancel_booking(number: int, *, result: int | None) -> None:
    pass


@workflow
async def fail_after(count: int) -> int:
    for number in range(count):
        await book(number)
    await wait_event("go")
    raise TerminalError("sold out")


class Waiting:
    """Counts the suspensions of runs, as a hook."""

    def __init__(self) -> None:
        self.count = 0
        self._awaited, self._reached = 0, asyncio.Event()

    def __call__(self, event: HookEvent) -> None:
        self.count += isinstance(event, RunWaiting)
        if self.count >= self._awaited:
            self._reached.set()

    async def until(self, count: int) -> None:
        """Wait until there were so many suspensions."""
        self._awaited = count
        self._reached.clear()
        if self.count < count:
            await self._reached.wait()


class Cost:
    """The time that something takes, and the CPU time of this process, for each of so many items."""

    def __init__(self) -> None:
        self.figures: Figures = {}

    @contextmanager
    def of(self, size: int) -> Iterator[None]:
        before, cpu = time.perf_counter(), cpu_sec()
        yield
        self.figures["value"] = (time.perf_counter() - before) / size * 1e6
        self.figures["cpu_us"] = (cpu_sec() - cpu) / size * 1e6


async def park(url: str, size: int) -> Figures:
    """Start runs that wait for an event, until all of them wait."""
    waiting, cost = Waiting(), Cost()
    async with App(url, hooks=[waiting], max_cached_runs=CACHED):
        await _warm_up()
        with cost.of(size):
            for first in range(0, size, GROUP):  # so that no handles are kept, which the garbage collector would visit
                await in_groups(steps_then_wait.start(0) for _ in range(min(GROUP, size - first)))
            await waiting.until(size)
    return cost.figures


async def where(url: str, size: int) -> Figures:
    """Send each waiting run an event that it selects with `where=`, and compare with events sent `to=` a run."""
    found = await measures.where(url, size)
    return {"value": found["where_sec"] / size * 1e6, "times_to": found["value"], "to_us": found["to_sec"] / size * 1e6}


async def release(url: str, size: int) -> Figures:
    """Send each waiting run an event `to=` it, until all runs have ended."""
    async with App(url, max_cached_runs=CACHED):
        await _warm_up()
        cpu = cpu_sec()  # with that of parking them, which is as linear
        seconds = await released(steps_then_wait, size, own=False)
        return {"value": seconds / size * 1e6, "cpu_us": (cpu_sec() - cpu) / size * 1e6}


async def broadcast(url: str, size: int) -> Figures:
    """Send one event to so many waiting runs, until all of them have ended."""
    waiting, cost = Waiting(), Cost()
    async with App(url, hooks=[waiting], max_cached_runs=CACHED):
        await _warm_up()
        handles = await in_groups(wait_for_news.start() for _ in range(size))
        await waiting.until(size)
        with cost.of(size):
            await send_event("news", 1)
            await asyncio.gather(*(handle.result() for handle in handles))
    return cost.figures


async def gathered(url: str, size: int) -> Figures:
    """Execute one run with so many steps at once."""
    cost = Cost()
    async with App(url):
        await _warm_up()
        with cost.of(size):
            await (await gather.start(size)).result()
    return cost.figures


async def long(url: str, size: int) -> Figures:
    """Execute one run with so many steps, one after the other."""
    cost = Cost()
    async with App(url):
        await _warm_up()
        with cost.of(size):
            await (await steps.start(size)).result()
    return cost.figures


async def replay(url: str, size: int) -> Figures:
    """Resume one run with so many steps in a worker that has nothing of it in memory."""
    cost = Cost()
    async with App(url):
        handle = await steps_then_wait.start(size)
        await until_waiting([handle])
    async with App(url, lease=LEASE_SEC) as app:
        await _warm_up()
        with cost.of(size):
            await send_event("go", size, to=handle.id)
            await app.get(handle.id).result()
    return cost.figures


async def rollback(url: str, size: int) -> Figures:
    """Compensate so many steps of one run, which a worker takes over before it fails."""
    cost = Cost()
    async with App(url):
        handle = await fail_after.start(size)
        await until_waiting([handle])
    async with App(url, lease=LEASE_SEC) as app:
        await _warm_up()
        with cost.of(size):
            await send_event("go", size, to=handle.id)
            with suppress(WorkflowFailedError):
                await app.get(handle.id).result()
    return cost.figures


async def waits(url: str, size: int) -> Figures:
    """Execute one run with so many waits, each for an event that is sent once the run waits."""
    waiting, cost = Waiting(), Cost()
    async with App(url, hooks=[waiting]):
        await _warm_up()
        handle = await many_waits.start(size)
        with cost.of(size):
            for number in range(size):
                await waiting.until(number + 1)
                await send_event("go", number, to=handle.id)
            await handle.result()
    return cost.figures


async def concurrent_waits(url: str, size: int) -> Figures:
    """Execute one run that waits for so many events at once, which are sent together once it waits."""
    waiting, cost = Waiting(), Cost()
    async with App(url, hooks=[waiting], lease=LEASE_SEC):
        await _warm_up()
        with cost.of(size):
            handle = await waits_at_once.start(size)
            await waiting.until(1)
            await in_groups(send_event("go", number, to=handle.id) for number in range(size))
            await handle.result()
    return cost.figures


async def _warm_up() -> None:
    """Load code and fill caches."""
    await (await steps.start(WARM_UP)).result()


LOADS = {
    "park": park,
    "where": where,
    "release": release,
    "broadcast": broadcast,
    "gather": gathered,
    "steps": long,
    "replay": replay,
    "rollback": rollback,
    "waits": waits,
    "waits-at-once": concurrent_waits,
    "memory": measures.memory,
    "memory-parked": measures.memory_parked,
    "interrupted": processes.interrupted,
    "workers": processes.workers,
}


if __name__ == "__main__":
    name, url, size = sys.argv[1:]
    print(json.dumps(asyncio.run(LOADS[name](url, int(size)))))
