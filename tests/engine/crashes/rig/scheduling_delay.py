"""How late this process is woken: on a busy machine, every process waits for a core."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

TICK_SEC = 0.05


class Lateness:
    """Every tick since it was watched, with how late it came."""

    def __init__(self) -> None:
        self._ticks: list[tuple[float, float]] = []

    @classmethod
    @asynccontextmanager
    async def watched(cls) -> AsyncIterator[Self]:
        lateness = cls()
        watching = asyncio.create_task(lateness._watch())
        try:
            yield lateness
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + TICK_SEC
            await asyncio.sleep(TICK_SEC)
            self._ticks.append((due, time.monotonic() - due))

    def between(self, begin: float, end: float) -> float:
        """Seconds spent waiting for a core in that time."""
        return sum(late for due, late in self._ticks if begin <= due <= end)
