"""One line with the progress, and one for each mutant that survives."""

import time
from typing import TextIO

from tests.mutants.catalogue import Mutant
from tests.mutants.results import Result

WIDTH = 30


class Progress:
    """On a terminal one line is rewritten; elsewhere there is a new one for each mutant."""

    def __init__(self, goal: int, out: TextIO) -> None:
        self._goal, self._out, self._live = goal, out, out.isatty()
        self._began = time.monotonic()
        self._done = self._missed = 0

    def show(self, mutant: Mutant, result: Result) -> None:
        """Say what became of a mutant."""
        self._done += 1
        self._missed += result.verdict != "caught"
        if not self._live:
            fate = result.by if result.verdict == "caught" else result.verdict.upper()
            self._print(f"{self._done}/{self._goal} {mutant}: {fate}")
            return
        if result.verdict != "caught":
            self._print(f"\r\x1b[K{result.verdict}: {mutant}")
        self._print(f"\r\x1b[K{self._bar()}", end="\n" if self._done == self._goal else "")

    def _bar(self) -> str:
        filled = WIDTH * self._done // self._goal
        left = (time.monotonic() - self._began) / self._done * (self._goal - self._done)
        bar = "█" * filled + "░" * (WIDTH - filled)
        return f"{bar} {self._done} of {self._goal}, {self._missed} not caught, about {left / 60:.0f} min left"

    def _print(self, line: str, end: str = "\n") -> None:
        print(line, end=end, file=self._out, flush=True)
