"""Measure the CPU time of a step with each codec, on SQLite in memory: `python -m benchmarks.codecs`."""

import asyncio
import time

from perdure import App, activity, workflow
from perdure.codecs import Codec, Compressed, Encrypted, new_key

RUNS, STEPS, TIMES = 10, 100, 7
SIZES = (20, 1_000, 10_000)
KEYS = {"k1": new_key()}
CODECS: dict[str, list[Codec] | None] = {
    "none": None,
    "compressed": [Compressed()],
    "encrypted": [Encrypted(KEYS)],
    "both": [Compressed(), Encrypted(KEYS)],
}


@activity(name="benchmarks.codecs.step")
async def step(value: str) -> str:
    return value


@workflow(name="benchmarks.codecs.many")
async def many(count: int, value: str) -> None:
    for _ in range(count):
        await step(value)


async def measure(codec: list[Codec] | None, size: int) -> float:
    """Return the microseconds of CPU time per step."""
    value = "ab" * (size // 2)
    async with App("sqlite:///:memory:", codec=codec):
        await many(10, value)
        began = time.process_time()
        await asyncio.gather(*(many(STEPS, value) for _ in range(RUNS)))
        return (time.process_time() - began) / (RUNS * STEPS) * 1e6


def main() -> None:
    """Print the least of several measurements of each codec and size, taken by turns."""
    for size in SIZES:
        found: dict[str, list[float]] = {name: [] for name in CODECS}
        for _ in range(TIMES):
            for name, codec in CODECS.items():
                found[name].append(asyncio.run(measure(codec, size)))
        print(f"{size:6} bytes:", ", ".join(f"{name} {min(each):.0f} µs" for name, each in found.items()))


if __name__ == "__main__":
    main()
