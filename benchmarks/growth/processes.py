"""Loads with several processes: one that is killed, and workers that share a database."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.engine.measures import Figures, add, in_groups, ten_steps
from perdure import App, activity, workflow
from perdure.hooks import HookEvent, RunCompleted
from perdure.storage.stores import SQLStorage

LEASE_SEC, SHORT_LEASE_SEC = 15, 2
FEW = 100  # runs for which a short lease is enough
RUNS = 2000  # of ten steps, for all workers together

holding: list[int] = []
killed_later = False  # in this process activities never return


@activity
async def hold(number: int) -> int:
    holding.append(number)
    if killed_later:
        await asyncio.Event().wait()
    return number


@workflow
async def interruptible(number: int) -> int:
    return await hold(await add(number))


async def interrupted(url: str, size: int) -> Figures:
    """Kill a worker that executes so many runs; seconds beyond the lease until another worker has finished them."""
    process = await _start("hold", url, size)
    await _line(process)
    process.kill()
    before = time.perf_counter()
    await process.wait()
    async with App(url, lease=_lease(size)) as app:
        await asyncio.gather(*(app.get(_run_id(number)).result() for number in range(size)))
    seconds = time.perf_counter() - before
    return {"value": seconds - _lease(size), "total_sec": seconds}


def _lease(size: int) -> int:
    return SHORT_LEASE_SEC if size <= FEW else LEASE_SEC


def _run_id(number: int) -> str:
    return f"interrupted-{number}"


async def _hold(url: str, size: int) -> None:
    """Start runs that never return from their activities; print a line once all of them are there."""
    global killed_later
    killed_later = True
    async with App(url, lease=_lease(size), max_runs=size + 1, max_activities=size + 1):
        await in_groups(interruptible.options(id=_run_id(number)).start(number) for number in range(size))
        while len(holding) < size:  # noqa: ASYNC110 - many activities, and no single moment to wait for
            await asyncio.sleep(0.01)
        print("all runs are in their activities", flush=True)
        await asyncio.Event().wait()


async def workers(url: str, size: int) -> Figures:
    """Steps per second of so many worker processes, and what they searched for in vain."""
    async with App(url, workflows=[]):  # it executes none of the runs
        await in_groups(ten_steps.start(number) for number in range(RUNS))
    processes = [await _start("work", url, RUNS) for _ in range(size)]
    for process in processes:
        await _line(process)
    before = time.time()
    for process in processes:
        process.stdin.write(b"start\n")  # type: ignore[union-attr]
    async with App(url, workflows=[]) as app:
        while await app.runs(status="completed").count() < RUNS:  # noqa: ASYNC110 - other processes complete them
            await asyncio.sleep(0.1)
    for process in processes:
        process.stdin.write(b"stop\n")  # type: ignore[union-attr]
    found = [json.loads(await _line(process)) for process in processes]
    for process in processes:
        await process.wait()
    end = max(each["last_at"] for each in found)
    sums = {name: float(sum(each[name] for each in found)) for name in ("searches", "empty", "leases", "refused")}
    return {"value": RUNS * 10 / (end - before), **sums}


async def _work(url: str) -> None:
    """Execute runs between two lines of the standard input, then print what was done."""
    loop, counts = asyncio.get_running_loop(), Counter[str]()
    _count_claims(counts)
    last_at = 0.0

    def note(event: HookEvent) -> None:
        nonlocal last_at
        if isinstance(event, RunCompleted):
            last_at = time.time()

    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    async with App(url, hooks=[note]):
        await loop.run_in_executor(None, sys.stdin.readline)
    names = ("searches", "empty", "leases", "refused")
    print(json.dumps({"last_at": last_at, **{name: counts[name] for name in names}}), flush=True)


def _count_claims(counts: Counter[str]) -> None:
    """Count the searches for runs, those that found nothing, the requested leases, and those that were refused."""
    storage: Any = SQLStorage
    find, claim = storage.find_resumable_workflows, storage.claim_instances

    async def counted_find(self: SQLStorage, *arguments: Any, **options: Any) -> Any:
        found = await find(self, *arguments, **options)
        counts.update(searches=1, empty=not found)
        return found

    async def counted_claim(self: SQLStorage, ids: Sequence[str], *arguments: Any, limit: int) -> Any:
        claimed = await claim(self, ids, *arguments, limit=limit)
        asked = min(limit, len(ids))
        counts.update(leases=asked, refused=asked - len(claimed))
        return claimed

    storage.find_resumable_workflows, storage.claim_instances = counted_find, counted_claim


async def _start(what: str, url: str, size: int) -> Process:
    command = [sys.executable, "-m", "benchmarks.growth.processes", what, url, str(size)]
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)


async def _line(process: Process) -> bytes:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise SystemExit(f"a worker ended with the exit code {await process.wait()}")
    return line


if __name__ == "__main__":
    what, url, size = sys.argv[1:]
    asyncio.run(_hold(url, int(size)) if what == "hold" else _work(url))
