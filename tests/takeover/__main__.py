"""Change the worker of every feature at each of its commits, then that of every mistake; then play pairs of features.

python -m tests.takeover                                   every part on every database
python -m tests.takeover --database sqlite --part mistakes pairs
python -m tests.takeover --database sqlite --feature waits several_waits --change death
python -m tests.takeover --database sqlite --case 'waits/death/run lease 1'
python -m tests.takeover --database sqlite --mistake 'bodies: sys.exit()'
python -m tests.takeover --database sqlite --fault 'bodies: sys.exit()|death|run1 lease 1'
python -m tests.takeover --database sqlite --pair parent parallel_retries
python -m tests.takeover --database sqlite --order 'parent/sleeps/run 1.1:takeover.work,run 2.2:takeover.work'
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from perdure.testing.servers import memory_folder
from tests.engine.crashes.rig.databases import own_database
from tests.support.databases import DATABASES
from tests.takeover.features import FEATURES, Change
from tests.takeover.mistakes import Fault, FaultPlayer, programs
from tests.takeover.pairs import Order, PairPlayer, pairs
from tests.takeover.rig import Case, Player, open_player

PARTS = {"changes": ("feature", "case"), "mistakes": ("mistake", "fault"), "pairs": ("pair", "order")}  # with options
WIDTH = 30  # of the progress bar
LINE_SEC = 30.0  # between two lines where there is no terminal

C = TypeVar("C", Case, Fault)


class Progress:
    """The progress bar of one part on one database, and its differences."""

    def __init__(self, backend: str, unit: str, goal: int, of: str = "") -> None:
        self._backend, self._unit, self._goal, self._of = backend, unit, goal, of
        self._began = self._shown = time.monotonic()
        self.played = self.failed = 0

    def add(self, done: int, name: object, option: str, wrong: Sequence[str]) -> None:
        """Report one more case."""
        self.played += 1
        if wrong:
            self.failed += 1
            self._say(f"{name} differs on {self._backend}:", *wrong)
            self._say(f"to repeat: python -m tests.takeover --database {self._backend} {option} {str(name)!r}\n")
        line = f"{self._of}{done:,} of {self._goal:,}: {self._counts}"
        if sys.stdout.isatty():
            bar = "#" * (done * WIDTH // self._goal)
            print(f"\r\x1b[K{self._backend} [{bar:{WIDTH}}] {line}", end="", flush=True)
        elif time.monotonic() > self._shown + LINE_SEC:
            self._shown = time.monotonic()
            self._say(f"{self._backend}: {line}")

    def end(self) -> None:
        seconds = time.monotonic() - self._began
        self._say(f"{self._backend}: {f'{self._goal:,} pairs, ' if self._of else ''}{self._counts}, {seconds:.0f} s")

    @property
    def _counts(self) -> str:
        return f"{self.played:,} {self._unit}, {self.failed} differences"

    def _say(self, *lines: str) -> None:
        print(*(["\r\x1b[K"] if sys.stdout.isatty() else []), "\n".join(lines), sep="", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what was asked for; return 1 if anything differs."""
    asked = _parser().parse_args(arguments)
    logging.getLogger("perdure").setLevel(logging.CRITICAL + 1)  # workers die here all the time
    return asyncio.run(_run(asked))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.takeover", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", nargs="+", choices=DATABASES, default=DATABASES, metavar="NAME")
    parser.add_argument("--part", nargs="+", choices=PARTS, metavar="NAME", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--feature", nargs="+", choices=FEATURES, metavar="NAME", help="only changes of these")
    parser.add_argument("--mistake", nargs="+", choices=programs(), metavar="NAME", help="only changes of these")
    parser.add_argument("--change", nargs="+", choices=list(Change), metavar="NAME", help="only these changes")
    parser.add_argument("--case", type=Case.parse, help="repeat one change of a feature")
    parser.add_argument("--fault", type=Fault.parse, help="repeat one change of a mistake")
    parser.add_argument("--pair", nargs=2, choices=FEATURES, metavar="NAME", help="only this pair")
    parser.add_argument("--order", type=Order.parse, help="repeat one order of a pair")
    return parser


def _parts(asked: argparse.Namespace) -> list[str]:
    """The parts that were asked for, by name or by an option."""
    chosen = [part for part, options in PARTS.items() if any(getattr(asked, option) for option in options)]
    return asked.part or chosen or list(PARTS)


async def _run(asked: argparse.Namespace) -> int:
    failed, parts = 0, _parts(asked)
    for backend in asked.database:
        with tempfile.TemporaryDirectory(prefix="perdure-takeover-", dir=memory_folder(1 << 28)) as folder:
            async with own_database(backend, Path(folder)) as database, open_player(database) as player:
                if "changes" in parts:
                    failed += await _play_changes(player, backend, asked)
                if "mistakes" in parts:
                    failed += await _play_mistakes(FaultPlayer(player), backend, asked)
                if "pairs" in parts:
                    failed += await _play_pairs(PairPlayer(player), backend, asked)
    return 1 if failed else 0


async def _play_changes(player: Player, backend: str, asked: argparse.Namespace) -> int:
    cases = [asked.case] if asked.case else await _cases(asked, asked.feature or list(FEATURES), player.cases)
    return await _play(backend, "cases of features", "--case", cases, player.play)


async def _play_mistakes(player: FaultPlayer, backend: str, asked: argparse.Namespace) -> int:
    cases = [asked.fault] if asked.fault else await _cases(asked, asked.mistake or list(programs()), player.cases)
    return await _play(backend, "cases of mistakes", "--fault", cases, player.play)


async def _cases(
    asked: argparse.Namespace, names: Sequence[str], cases_of: Callable[[str], Awaitable[list[C]]]
) -> list[C]:
    found = [case for name in names for case in await cases_of(name)]
    return [case for case in found if case.change in (asked.change or Change)]


async def _play(
    backend: str, unit: str, option: str, cases: Sequence[C], play: Callable[[C], Awaitable[list[str]]]
) -> int:
    progress = Progress(backend, unit, len(cases))
    for number, case in enumerate(cases, 1):
        progress.add(number, case, option, await play(case))
    progress.end()
    return progress.failed


async def _play_pairs(player: PairPlayer, backend: str, asked: argparse.Namespace) -> int:
    if asked.order is not None:
        progress = Progress(backend, "orders", 1)
        progress.add(1, asked.order, "--order", (await player.play(asked.order))[0])
    else:
        chosen = [tuple(asked.pair)] if asked.pair else pairs()
        progress = Progress(backend, "orders", len(chosen), "pair ")
        for number, pair in enumerate(chosen, 1):
            async for order, wrong in player.differences(*pair):
                progress.add(number, order, "--order", wrong)
    progress.end()
    return progress.failed


if __name__ == "__main__":
    sys.exit(main())
