"""Execute runs, 100 in flight, and count what happens meanwhile; prints the counts per unit as JSON.

    python benchmarks/instructions/load.py calls ten-step sqlite:///bench.db 200

A unit is a run of one step, or a step of a run of ten. `none` counts nothing, for tools that watch the process.
callgrind makes the process so much slower that what the engine does at intervals would be most of the work, so there
the intervals are as much longer. It is also short, and one garbage collection of everything is as much as a hundred
steps, so there are none.
"""

import asyncio
import gc
import json
import sys
import threading
from asyncio.base_events import BaseEventLoop
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.engine.measures import IN_FLIGHT, one_step, ten_steps
from benchmarks.statements.counters import counting
from perdure import App, Workflow
from perdure.database.backends.sqlite import wal_watch
from perdure.engine.worker import executor, results

LOADS: dict[str, tuple[Workflow[[int], int], int]] = {"one-step": (one_step, 1), "ten-step": (ten_steps, 10)}
LEASE_SEC = 600  # an instrumented process is slow, and must not lose its leases
SLOWDOWN = 100  # about that of callgrind


class Calls:
    """Counts the calls of functions in all threads: of Python functions, and of those written in C."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {"call": 0, "c_call": 0}

    def install(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        if event in self._counts:
            self._counts[event] += 1

    def read(self) -> dict[str, float]:
        return {"python_calls": self._counts["call"], "c_calls": self._counts["c_call"]}


class Callbacks:
    """Counts what event loops do: callbacks that run, tasks and timers that are created."""

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def install(self) -> None:
        for owner, method, name in (
            (asyncio.Handle, "_run", "callbacks"),
            (BaseEventLoop, "create_task", "tasks"),
            (BaseEventLoop, "call_at", "timers"),
        ):
            setattr(owner, method, self._counted(getattr(owner, method), name))

    def _counted(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        counts = self._counts

        def counted(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **options)

        return counted

    def read(self) -> dict[str, float]:
        return {name: self._counts[name] for name in ("callbacks", "tasks", "timers")}


async def execute(load: str, runs: int) -> None:
    """Execute so many runs, 100 in flight."""
    program, _ = LOADS[load]
    numbers = iter(range(runs))

    async def caller() -> None:
        for number in numbers:
            await (await program.start(number)).result()

    await asyncio.gather(*(caller() for _ in range(min(IN_FLIGHT, runs))))


def stretch_intervals() -> None:
    """Make the intervals longer at which a worker looks for what it may have missed."""
    wal_watch.PAUSE_SEC *= SLOWDOWN
    wal_watch.AFTERTHOUGHTS_SEC = (wal_watch.AFTERTHOUGHTS_SEC[0] * SLOWDOWN,) * 5
    executor.HINT_SEC *= SLOWDOWN
    results.HINTED_MIN_SEC *= SLOWDOWN


async def count(what: str, load: str, url: str, runs: int) -> dict[str, float]:
    """Return the counts per unit, without those of opening and closing."""
    units, warm_up = runs * LOADS[load][1], min(IN_FLIGHT, runs)
    if what == "database":
        async with counting(url) as counters, App(url, lease=LEASE_SEC):
            await execute(load, warm_up)
            before = await counters.read()
            await execute(load, runs)
            after = await counters.read()
        return {name: (after[name] - before[name]) / units for name in counters.figures}
    if what == "none":
        stretch_intervals()
        gc.disable()
        async with App(url, lease=LEASE_SEC):
            await execute(load, runs)
        return {}
    counter = Calls() if what == "calls" else Callbacks()
    counter.install()
    async with App(url, lease=LEASE_SEC):
        await execute(load, warm_up)
        first = counter.read()
        await execute(load, runs)
        last = counter.read()
    sys.setprofile(None)
    return {name: (last[name] - first[name]) / units for name in first}


if __name__ == "__main__":
    what, load, url, runs = sys.argv[1:]
    print(json.dumps(asyncio.run(count(what, load, url, int(runs)))))
