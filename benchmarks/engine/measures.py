"""What is measured about the engine, by playing it with the `perdure` that is on the path; prints the figures as JSON.

    python benchmarks/engine/measures.py ten-step sqlite:///bench.db 4000

`processes.py` starts it once for each measurement, with the sources of one tree on the path. It uses only what every
revision since the second edition of the API has.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from perdure import App, Client, RunHandle, Workflow, WorkflowStatus, activity, send_event, wait_event, workflow

IN_FLIGHT = 100
GROUP = 1000  # runs that are started before those wait
REPLAYS = 5  # of each history
Figures = dict[str, float]
Play = Callable[[str, int], Coroutine[Any, Any, Figures]]


class Measure(NamedTuple):
    """A figure of the engine. `play` gets a URL and the size of the measurement; `value` is the figure it is about."""

    play: Play
    size: int
    unit: str
    more_is_better: bool
    what: str
    most: float | None = None  # the goal


# The programs that are played.


@activity
async def add(number: int) -> int:
    return number + 1


@workflow
async def one_step(number: int) -> int:
    return await add(number)


@workflow
async def ten_steps(number: int) -> int:
    for _ in range(10):
        number = await add(number)
    return number


@workflow
async def fan(number: int) -> int:
    return sum(await asyncio.gather(*(add(number + i) for i in range(100))))


@workflow
async def steps(count: int) -> int:
    for number in range(count):
        await add(number)
    return count


@workflow
async def steps_then_wait(count: int) -> int:
    for number in range(count):
        await add(number)
    return int((await wait_event("go")).data)


@workflow
async def wait_for_mine(number: int) -> int:
    return int((await wait_event("mine", where={"number": number})).data["number"])


# Throughput, always 100 runs in flight.


def throughput(workflow: "Workflow[[int], int]", steps_each: int, **settings: Any) -> Play:
    """Return a measurement of the steps per second of many runs of a workflow, by an app with these settings."""

    async def play(url: str, size: int) -> Figures:
        numbers = iter(range(max(IN_FLIGHT, size // steps_each)))

        async def caller() -> int:
            done = 0
            for number in numbers:
                await (await workflow.start(number)).result()
                done += 1
            return done

        async with App(url, **settings):
            await (await workflow.start(-1)).result()
            before, cpu = time.perf_counter(), cpu_sec()
            runs = sum(await asyncio.gather(*(caller() for _ in range(IN_FLIGHT))))
            seconds, cpu = time.perf_counter() - before, cpu_sec() - cpu
        return {"value": runs * steps_each / seconds, "cpu_us": cpu / runs / steps_each * 1e6}

    return play


# Latency, one run at a time.


async def latency(url: str, size: int) -> Figures:
    async with App(url):
        return _latencies([await timed(_run_one(number)) for number in range(size)])


async def latency_across(url: str, size: int) -> Figures:
    async with _worker(url), Client(url):
        return _latencies([await timed(_run_one(number)) for number in range(size)])


async def latency_blocking(url: str, size: int) -> Figures:
    from perdure import SyncClient  # which earlier revisions don't have

    def run_one(number: int) -> float:
        before = time.perf_counter()
        one_step.start_sync(number).result()
        return (time.perf_counter() - before) * 1000

    async with _worker(url):
        with SyncClient(url):
            return _latencies([run_one(number) for number in range(size)])


async def event(url: str, size: int) -> Figures:
    async with App(url):
        return _latencies([await _event_to_end(number) for number in range(size)])


async def event_across(url: str, size: int) -> Figures:
    async with _worker(url), Client(url):
        return _latencies([await _event_to_end(number) for number in range(size)])


async def _run_one(number: int) -> None:
    await (await one_step.start(number)).result()


async def _event_to_end(number: int) -> float:
    handle = await steps_then_wait.start(0)
    await until_waiting([handle])

    async def send_and_wait() -> None:
        await send_event("go", number, to=handle.id)
        await handle.result()

    return await timed(send_and_wait())


# Growth with the size of a history, and with the number of runs.


async def replay(url: str, size: int) -> Figures:
    """Milliseconds that a worker needs longer to resume a run with so many steps than to resume one without."""
    empty = median([await _resumption(url, 0) for _ in range(REPLAYS)])
    full = median([await _resumption(url, size) for _ in range(REPLAYS)])
    return {"value": full - empty, "empty": empty}


async def _resumption(url: str, count: int) -> float:
    async with App(url):
        handle = await steps_then_wait.start(count)
        await until_waiting([handle])
    async with App(url) as app:  # with nothing in memory

        async def resume() -> None:
            await send_event("go", count, to=handle.id)
            await app.get(handle.id).result()

        return await timed(resume())


async def long_run(url: str, size: int) -> Figures:
    """How much longer a step of a run with so many steps takes than one of a run with a tenth of them."""
    async with App(url):
        await (await steps.start(100)).result()

        async def run(count: int) -> float:
            return await timed((await steps.start(count)).result()) / count

        short, long = await run(max(1, size // 10)), await run(size)
    return {"value": long / short, "us_per_step": long * 1000}


async def where(url: str, size: int) -> Figures:
    """How much longer so many events take that runs select with `where=` than events that are sent `to=` a run."""
    async with App(url):
        chosen, sent = await released(wait_for_mine, size, own=True), await released(steps_then_wait, size, own=False)
    return {"value": chosen / sent, "where_sec": chosen, "to_sec": sent}


async def released(workflow: "Workflow[[int], int]", count: int, *, own: bool) -> float:
    """Return the seconds until so many waiting runs have ended, each by an event of its own."""
    handles = await in_groups(workflow.start(number if own else 0) for number in range(count))
    await until_waiting(handles)
    before = time.perf_counter()
    if own:
        await in_groups(send_event("mine", {"number": number}) for number in range(count))
    else:
        await in_groups(send_event("go", 1, to=handle.id) for handle in handles)
    await asyncio.gather(*(handle.result() for handle in handles))
    return time.perf_counter() - before


async def park(url: str, size: int) -> Figures:
    """How much longer it takes per run to park so many waiting runs than to park a tenth of them."""
    async with App(url):
        few, many = await parked(max(1, size // 10)), await parked(size)
    return {"value": many / few, "us_per_run": many * 1e6}


async def parked(count: int) -> float:
    """Return the seconds per run until so many more runs wait, without keeping their handles, which take memory."""
    before = time.perf_counter()
    for first in range(0, count, GROUP):
        group = range(min(GROUP, count - first))
        await until_waiting(await in_groups(steps_then_wait.start(0) for _ in group))
    return (time.perf_counter() - before) / count


async def memory(url: str, size: int) -> Figures:
    return await grown(url, size, size)


async def memory_parked(url: str, size: int) -> Figures:
    return await grown(url, size, 0)


async def grown(url: str, count: int, cached: int) -> Figures:
    """Return the growth of this process in bytes for each waiting run, with so many of them kept in memory."""
    async with App(url, max_cached_runs=cached):
        await parked(max(GROUP, count // 10) if count >= GROUP else 1)  # whatever else there is, is there from here on
        before = resident()
        await parked(count)
        return {"value": (resident() - before) / count}


MEASURES = {
    "one-step": Measure(throughput(one_step, 1), 4000, "runs/s", True, "workflows of one step"),
    "ten-step": Measure(throughput(ten_steps, 10), 10_000, "steps/s", True, "workflows of ten steps"),
    "fan": Measure(throughput(fan, 100), 10_000, "steps/s", True, "workflows of a hundred steps at once"),
    "latency": Measure(latency, 300, "ms", False, "start to result of one run, p50"),
    "latency-across": Measure(latency_across, 100, "ms", False, "the same, executed by another process", most=12),
    "latency-blocking": Measure(latency_blocking, 100, "ms", False, "the same, started by a program that blocks"),
    "event": Measure(event, 200, "ms", False, "event to result, p50"),
    "event-across": Measure(event_across, 100, "ms", False, "the same, executed by another process", most=12),
    "replay": Measure(replay, 1000, "ms", False, "replay of 1,000 steps, beyond an empty run"),
    "long-run": Measure(long_run, 20_000, "times", False, "a step of 20,000 against one of 2,000"),
    "where": Measure(where, 1000, "times", False, "1,000 events by where= against to=", most=2),
    "park": Measure(park, 10_000, "times", False, "parking one of 10,000 runs against one of 1,000"),
    "memory": Measure(memory, 5000, "bytes", False, "memory per waiting run that is resident", most=4096),
    "memory-parked": Measure(memory_parked, 5000, "bytes", False, "memory per waiting run that is not", most=300),
}


# Tools.


@asynccontextmanager
async def _worker(url: str) -> AsyncIterator[None]:
    """Serve the workflows in another process."""
    command = [sys.executable, __file__, "serve", url]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def _serve(url: str) -> None:
    async with App(url):
        print("ready", flush=True)
        await asyncio.Event().wait()


async def in_groups(calls: "Iterable[Awaitable[Any]]") -> list[Any]:
    """Await many calls, 100 at a time."""
    iterator, answers = iter(calls), dict[int, Any]()

    async def caller() -> None:
        for call in iterator:
            position = len(answers)
            answers[position] = None
            answers[position] = await call

    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return list(answers.values())


async def until_waiting(handles: "list[RunHandle[int]]") -> None:
    for handle in handles:
        pause_sec = 0.001
        while (await handle.info()).status is WorkflowStatus.RUNNING:
            await asyncio.sleep(pause_sec)
            pause_sec = min(2 * pause_sec, 1.0)  # the information about a long run takes a read of its history


async def timed(work: Awaitable[object]) -> float:
    """Return how many milliseconds it takes."""
    before = time.perf_counter()
    await work
    return (time.perf_counter() - before) * 1000


def _latencies(found: list[float]) -> Figures:
    found = found[len(found) // 10 :]  # without the first, which load code and fill caches
    return {"value": median(found), "p99": quantiles(found, n=100)[98]}


def cpu_sec() -> float:
    """Return the CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    what, url, *size = sys.argv[1:]
    if what == "serve":
        asyncio.run(_serve(url))
    else:
        print(json.dumps(asyncio.run(MEASURES[what].play(url, int(size[0])))))
