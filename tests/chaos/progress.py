"""One line with the progress of a rig."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Self, TextIO, TypeVar

from tests.chaos.ledger import Totals

T = TypeVar("T")


class Progress:
    """The line of one rig on one database; on a terminal it is rewritten, elsewhere there is a new one a round."""

    def __init__(self, name: str, unit: str, goal: int, out: TextIO) -> None:
        self._name, self._unit, self._goal, self._out = name, unit, goal, out
        self._live = out.isatty()
        self._totals, self._since = Totals(), time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            print(file=self._out)

    def show(self, totals: Totals, *, last: bool = False) -> None:
        """Say what was played so far."""
        self._totals, self._since = totals, time.monotonic()
        if self._live or last or totals.done:
            self._write()

    async def watch(self, playing: Awaitable[T]) -> T:
        """Keep the time that is left up to date while a round is played."""
        ticking = asyncio.create_task(self._tick()) if self._live else None
        try:
            return await playing
        finally:
            if ticking is not None:
                ticking.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._write()

    def _write(self) -> None:
        ends = ("\r", "\x1b[K") if self._live else ("", "\n")
        done = f"{self._totals.done:,} of {self._goal:,} {self._unit}"
        line = f"{self._name}: {done}, {self._left()}, {len(self._totals.wrong)} violations"
        print(ends[0] + line, end=ends[1], file=self._out, flush=True)

    def _left(self) -> str:
        if self._totals.done >= self._goal:
            return f"{self._totals.seconds:.0f} s in all"
        if not self._totals.done:
            return f"{time.monotonic() - self._since:.0f} s so far"
        left = (self._goal - self._totals.done) * self._totals.seconds / self._totals.done
        return f"about {max(1.0, left - (time.monotonic() - self._since)):.0f} s left"
