"""A prototype of workflows with group commit and nothing else: no leases, no replay, no checks.

The callers of a moment share a commit. While it runs, the next group gathers.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import NamedTuple

from benchmarks.engine.measures import IN_FLIGHT, Figures, Play
from benchmarks.limit.writers import Rows, Writer, open_writer

GROUP = 100


class _Waiting(NamedTuple):
    """What callers wait to have stored, and the future that they share."""

    rows: Rows
    stored: "asyncio.Future[None]"


class GroupCommit:
    """Stores rows of many callers in one transaction at a time."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._next = self._empty()
        self._some = asyncio.Event()

    def _empty(self) -> _Waiting:
        return _Waiting(Rows([], [], []), asyncio.get_running_loop().create_future())

    def start(self, run_id: str, number: int) -> "asyncio.Future[None]":
        self._next.rows.starts.append((run_id, str(number)))
        return self._wait()

    def step(self, run_id: str, step: int, result: int) -> "asyncio.Future[None]":
        self._next.rows.steps.append((run_id, step, str(result)))
        return self._wait()

    def end(self, run_id: str, result: int) -> "asyncio.Future[None]":
        self._next.rows.ends.append((run_id, str(result)))
        return self._wait()

    def _wait(self) -> "asyncio.Future[None]":
        self._some.set()
        return self._next.stored

    async def work(self) -> None:
        """Store group after group."""
        while True:
            await self._some.wait()
            self._some.clear()
            group, self._next = self._next, self._empty()
            await self._writer.store(group.rows)
            group.stored.set_result(None)


@asynccontextmanager
async def group_commit(url: str) -> AsyncIterator[GroupCommit]:
    """Open the database and commit in the background."""
    writer = await open_writer(url)
    committer = GroupCommit(writer)
    task = asyncio.create_task(committer.work())
    try:
        yield committer
    finally:
        task.cancel()
        await asyncio.wait([task])
        await writer.close()


async def run(committer: GroupCommit, number: int, steps: int) -> int:
    """Execute a run: its start, its steps and its end are each stored before it continues."""
    run_id, result = f"run-{number}", number
    await committer.start(run_id, number)
    for step in range(steps):
        result += 1
        await committer.step(run_id, step, result)
    await committer.end(run_id, result)
    return result


def throughput(steps: int) -> Play:
    """Return a measurement of the steps per second of many runs, always 100 in flight."""

    async def play(url: str, size: int) -> Figures:
        numbers = iter(range(max(IN_FLIGHT, size // steps)))

        async def caller() -> int:
            done = 0
            for number in numbers:
                await run(committer, number, steps)
                done += 1
            return done

        async with group_commit(url) as committer:
            await run(committer, -1, steps)
            before = time.perf_counter()
            runs = sum(await asyncio.gather(*(caller() for _ in range(IN_FLIGHT))))
            return {"value": runs * steps / (time.perf_counter() - before)}

    return play


async def latency(url: str, size: int) -> Figures:
    """Milliseconds of a run of one step, one at a time."""
    found = []
    async with group_commit(url) as committer:
        for number in range(size):
            before = time.perf_counter()
            await run(committer, number, 1)
            found.append((time.perf_counter() - before) * 1000)
    return {"value": median(found[len(found) // 10 :])}


async def rows(url: str, size: int) -> Figures:
    """Store so many rows, 100 a commit, one commit after the other."""
    writer = await open_writer(url)
    groups = [[("run", start + n, "1") for n in range(GROUP)] for start in range(0, max(GROUP, size), GROUP)]
    before = time.perf_counter()
    for group in groups:
        await writer.store(Rows([], group, []))
    seconds = time.perf_counter() - before
    await writer.close()
    return {"value": len(groups) * GROUP / seconds}
