"""Play one load with the `perdure` that is on the path, and print what it took as JSON.

Started by `benchmarks.compare` once for each measurement, with the sources of one of the two trees on the path. It
uses only what every revision since the second edition of the API has.
"""

import asyncio
import json
import resource
import sys
import time

from perdure import App, Workflow, activity, workflow

IN_FLIGHT = 100


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


LOADS: dict[str, tuple[Workflow[[int], int], int]] = {  # with the steps of one run
    "one-step": (one_step, 1),
    "ten-step": (ten_steps, 10),
    "fan": (fan, 100),
}


async def play(url: str, load: str, steps: int) -> dict[str, float]:
    """Start runs until they have recorded about so many steps, always 100 of them in flight."""
    workflow, steps_each = LOADS[load]
    numbers = iter(range(max(IN_FLIGHT, steps // steps_each)))

    async def caller() -> int:
        done = 0
        for number in numbers:
            handle = await workflow.start(number)
            await handle.result()
            done += 1
        return done

    async with App(url):
        await (await workflow.start(-1)).result()
        before, cpu = time.perf_counter(), _cpu()
        runs = sum(await asyncio.gather(*(caller() for _ in range(IN_FLIGHT))))
        seconds, cpu = time.perf_counter() - before, _cpu() - cpu
    return {"steps_per_second": runs * steps_each / seconds, "cpu_us_per_step": cpu / runs / steps_each * 1e6}


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    print(json.dumps(asyncio.run(play(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
