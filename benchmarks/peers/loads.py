"""The loads that every peer executes: those of `benchmarks/engine/measures.py`, without perdure.

A peer's module is executed by its own interpreter, which has no perdure. So the loads are written here a second time:
change both together.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from statistics import median, quantiles
from typing import Any

IN_FLIGHT = 100
Figures = dict[str, float]
Start = Callable[[int], Awaitable[int]]  # starts a run with this number and waits for its result
System = Callable[[str], AbstractAsyncContextManager[tuple[Start, Start]]]  # its runs of one step, and of ten steps
Main = Callable[[Coroutine[Any, Any, Figures]], Figures]


def main(system: System, execute: Main = asyncio.run) -> None:
    """Play the load that the arguments MEASURE, URL and SIZE ask for, and print its figures as JSON."""
    measure, url, size = sys.argv[1:]
    print(json.dumps(execute(_play(system, measure, url, int(size)))))


async def _play(system: System, measure: str, url: str, size: int) -> Figures:
    async with system(url) as (one_step, ten_steps):
        if measure == "one-step":
            return await _throughput(one_step, 1, size)
        elif measure == "ten-step":
            return await _throughput(ten_steps, 10, size)
        elif measure == "latency":
            return await _latency(one_step, size)
        raise SystemExit(f"there is no measure {measure!r}")


async def _throughput(start: Start, steps_each: int, size: int) -> Figures:
    """Measure the steps per second, always with 100 runs in flight."""
    numbers = iter(range(max(IN_FLIGHT, size // steps_each)))

    async def caller() -> int:
        done = 0
        for number in numbers:
            await _checked(start, number, steps_each)
            done += 1
        return done

    await _checked(start, -1, steps_each)
    before = time.perf_counter()
    runs = sum(await asyncio.gather(*(caller() for _ in range(IN_FLIGHT))))
    return {"value": runs * steps_each / (time.perf_counter() - before)}


async def _latency(start: Start, size: int) -> Figures:
    """Measure the milliseconds from the start of a run to its result, one run at a time."""
    found = []
    for number in range(size):
        before = time.perf_counter()
        await _checked(start, number, 1)
        found.append((time.perf_counter() - before) * 1000)
    found = found[len(found) // 10 :]  # without the first, which load code and fill caches
    return {"value": median(found), "p99": quantiles(found, n=100)[98]}


async def _checked(start: Start, number: int, steps: int) -> None:
    """Execute a run; a system that did not do the work must not look fast."""
    result = await start(number)
    if result != number + steps:
        raise RuntimeError(f"a run with {steps} steps made {result!r} from {number}")
