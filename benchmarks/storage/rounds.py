"""Run the rounds: raw, ours, raw, ours, … so that other load on the machine affects both."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from typing import Any

from benchmarks.storage import data
from benchmarks.storage.cases import Case
from benchmarks.storage.sides import Side
from perdure.storage.stores import SQLStorage

WARM_UP_SEC = 0.03  # before each round: connections, prepared statements, caches


@dataclass(frozen=True, slots=True)
class Speed:
    """Hold the result of one round."""

    per_second: float
    cpu_us: float  # of this process, per item; without the server's


@dataclass(slots=True)
class Result:
    """Hold all rounds of one case with so many callers."""

    database: str
    case: Case
    callers: int
    raw: list[Speed] = field(default_factory=list)
    ours: list[Speed] = field(default_factory=list)

    @property
    def target(self) -> float:
        return self.case.target(self.database, self.callers)

    @property
    def ratio(self) -> float:
        """Return the ratio of ours to raw, median to median."""
        return middle(self.ours).per_second / middle(self.raw).per_second

    @property
    def spread(self) -> tuple[float, float]:
        """Return the minimum and the maximum ratio of two neighbouring rounds."""
        ratios = [ours.per_second / raw.per_second for raw, ours in zip(self.raw, self.ours, strict=True)]
        return min(ratios), max(ratios)


def middle(speeds: Sequence[Speed]) -> Speed:
    """Return the medians."""
    return Speed(median(speed.per_second for speed in speeds), median(speed.cpu_us for speed in speeds))


async def measure(result: Result, storage: SQLStorage, raw: Side, ours: Side, rounds: int, seconds: float) -> None:
    """Run the rounds of one case."""
    case = result.case
    inputs = case.prepare(result.callers, WARM_UP_SEC + seconds)
    for _ in range(rounds):
        for side, speeds in ((raw, result.raw), (ours, result.ours)):
            await data.reset(storage, case.state)
            call = getattr(side, case.name)
            callers: list[Iterator[Any]] = [iter(given) for given in inputs]
            if side.sequential:
                callers = [chain(*callers)]
            gc.collect()
            await _run(call, callers, min(WARM_UP_SEC, seconds))
            speeds.append(await _run(call, callers, seconds, case.size))


async def _run(
    call: Callable[[Any], Awaitable[Any]], callers: Sequence[Iterator[Any]], seconds: float, size: int = 1
) -> Speed:
    done = 0

    async def caller(inputs: Iterable[Any]) -> None:
        nonlocal done
        for given in inputs:
            if not await call(given):
                raise RuntimeError(f"{getattr(call, '__qualname__', call)} had no effect: the measurement is invalid")
            done += size
            if time.perf_counter() >= end:
                return

    cpu, start = time.process_time(), time.perf_counter()
    end = start + seconds
    await asyncio.gather(*map(caller, callers))
    took, worked = time.perf_counter() - start, time.process_time() - cpu
    return Speed(done / took, worked / done * 1e6)
