"""The runner: runs rigs round by round, up to their goals, and records the results.

A round that was played is never lost: it is in the ledger, and the next call continues from there. It stops on its own
at the goal, when its time is up, and at the first violation, with the command that repeats the round.
"""

import asyncio
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tests.chaos.ledger import Ledger, Played, Totals, commit
from tests.chaos.progress import Progress
from tests.chaos.rigs import Outcome, Rig, Round


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    minutes: float | None = None  # for all rigs together, each has its share
    seed: int | None = None  # of the first round; the next ones have the next numbers
    count: int | None = None  # so many episodes now, whatever was played before
    fresh: bool = False
    keep_going: bool = False


@dataclass(slots=True)
class Session:
    """All rigs that were asked for, on all databases that were."""

    pairs: Sequence[tuple[Rig, str]]
    options: Options
    home: Path | None = None  # of the ledgers
    out: TextIO = field(default_factory=lambda: sys.stdout)
    violated: bool = False
    commit: str = field(default_factory=commit)

    def run(self) -> int:
        """Play, and return the exit code."""
        until = None if self.options.minutes is None else time.monotonic() + 60 * self.options.minutes
        interrupted = False
        for index, (rig, backend) in enumerate(self.pairs):
            if self.options.fresh:
                self._ledger(rig, backend).forget()
            share = None if until is None else (until - time.monotonic()) / (len(self.pairs) - index)
            try:
                self._play_all(rig, backend, share)
            except KeyboardInterrupt:
                interrupted = True
            if interrupted or (self.violated and not self.options.keep_going):
                break
        print("", *table(self.pairs, self.home), sep="\n", file=self.out)
        before = not self.options.count and any(self._ledger(*pair).totals().wrong for pair in self.pairs)
        if before and not self.violated:
            print("violations of earlier rounds count until --fresh", file=self.out)
        return 1 if self.violated or before else 130 if interrupted else 0

    def _ledger(self, rig: Rig, backend: str) -> Ledger:
        return Ledger(rig.name, backend, self.home)

    def _play_all(self, rig: Rig, backend: str, share_sec: float | None) -> None:
        """Round after round, up to the goal or the end of its share of the time."""
        ledger = self._ledger(rig, backend)
        before = [] if self.options.count else ledger.read()
        goal = self.options.count or rig.goals[backend]
        apart = self.options.count is not None or self.options.seed is not None
        began, played = time.monotonic(), list[Played]()
        with Progress(f"{rig.name} {backend}", rig.unit, goal, self.out) as progress:
            while (totals := Totals.of([*before, *played])).done < goal:
                longest = max((each.seconds for each in played), default=0.0)
                if played and share_sec is not None and time.monotonic() - began + longest > share_sec:
                    break
                progress.show(totals)
                round_ = self._round(rig, backend, len(played), totals.done, goal - totals.done)
                played.append(self._play(rig, round_, progress))
                if not (rig.in_order and apart):  # or a place of the list would count twice, and another not at all
                    ledger.append(played[-1])
                if played[-1].wrong:
                    self.violated = True
                    self._complain(rig, round_, played[-1].wrong)
                if not played[-1].done or (self.violated and not self.options.keep_going):
                    break
            progress.show(Totals.of([*before, *played]), last=True)

    def _round(self, rig: Rig, backend: str, number: int, done: int, left: int) -> Round:
        if rig.in_order:
            seed = (self.options.seed or 0) + done
        else:
            seed = secrets.randbelow(1 << 32) if self.options.seed is None else self.options.seed + number
        return Round(backend, seed, min(rig.per_round, left), Path(tempfile.mkdtemp(prefix="perdure-chaos-")))

    def _play(self, rig: Rig, round_: Round, progress: Progress) -> Played:
        """A round that breaks off has gone wrong; its folder is kept to find out why."""
        began = time.monotonic()
        try:
            outcome = asyncio.run(progress.watch(rig.play(round_)))
        except Exception as error:
            traceback.print_exc(file=self.out)
            outcome = Outcome(0, [f"the round broke off: {error!r}"])
        except KeyboardInterrupt:
            shutil.rmtree(round_.folder, ignore_errors=True)
            raise
        if not outcome.wrong:
            shutil.rmtree(round_.folder, ignore_errors=True)
        seconds = round(time.monotonic() - began, 1)
        return Played(round_.seed, round_.count, outcome.done, outcome.wrong, outcome.figures, seconds, self.commit)

    def _complain(self, rig: Rig, round_: Round, wrong: list[str]) -> None:
        repeat = f"--rig {rig.name} --database {round_.backend} --seed {round_.seed} --count {round_.count}"
        about = f"{len(wrong)} violations on {round_.backend}, see {round_.folder}"
        print("", *wrong[:20], about, f"to repeat: python -m tests.chaos {repeat}", sep="\n", file=self.out)


def table(pairs: Sequence[tuple[Rig, str]], home: Path | None = None) -> list[str]:
    """What every rig came to on every database, this time and before."""
    rows = [("rig", "database", "episodes", "goal", "violations", "minutes", "commits", "figures")]
    for rig, backend in pairs:
        totals = Ledger(rig.name, backend, home).totals()
        done, minutes = f"{totals.done:,} {rig.unit}", f"{totals.seconds / 60:.1f}"
        figures = ", ".join(f"{name} {value:g}" for name, value in totals.figures.items())
        goal, wrong = f"{rig.goals[backend]:,}", str(len(totals.wrong))
        rows.append((rig.name, backend, done, goal, wrong, minutes, " ".join(totals.commits), figures))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
