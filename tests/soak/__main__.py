"""A soak test: a mixed load for half an hour on each database, with samples over time. Does anything grow?

python -m tests.soak                                       30 minutes, all databases at the same time
python -m tests.soak --minutes 3 --database sqlite
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from tests.chaos.ledger import ROOT
from tests.soak.soak import RATE, Plan, Report, Soak
from tests.support.databases import DATABASES

SAMPLES = 360
BAR = 30


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    seconds = 60 * asked.minutes
    plan = Plan(seconds, asked.rate, sample_sec=max(1.0, seconds / SAMPLES), seed=asked.seed)
    logging.getLogger("perdure").addHandler(logging.NullHandler())  # workers that are killed are no news here
    reports = asyncio.run(_run([Soak(name, plan) for name in dict.fromkeys(asked.database)], sys.stdout))
    for report in reports:
        report.write(asked.folder)
        print("", *report.summary(), sep="\n")
    print(f"\nthe samples and charts are in {asked.folder}")
    return 0 if all(report.is_fine for report in reports) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument("--database", nargs="+", choices=DATABASES, default=DATABASES, help="default: all at once")
    parser.add_argument("--rate", type=float, default=RATE, help="cases per second (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="of what is random (default: 1)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".soak", help="for the results (default: .soak)")
    return parser


async def _run(soaks: Sequence[Soak], out: TextIO) -> list[Report]:
    progress = asyncio.create_task(_show(soaks, out))
    try:
        return list(await asyncio.gather(*(soak.run() for soak in soaks)))
    finally:
        progress.cancel()


async def _show(soaks: Sequence[Soak], out: TextIO) -> None:
    """One line that is rewritten on a terminal; elsewhere a new one every minute. Each violation has its own line."""
    began, live, known = time.monotonic(), out.isatty(), set[str]()
    start, clear, end = ("\r", "\x1b[K", "") if live else ("", "", "\n")
    while True:
        await asyncio.sleep(1 if live else 60)
        found = {f"{soak.backend}: {each}" for soak in soaks if soak.load is not None for each in soak.load.wrong}
        for violation in sorted(found - known):
            print(f"{start}WRONG {violation}{clear}", file=out)
        known = found
        print(f"{start}{progress_line(soaks, time.monotonic() - began)}{clear}", end=end, file=out, flush=True)


def progress_line(soaks: Sequence[Soak], passed_sec: float) -> str:
    """A bar, the time that is left, and what was done so far."""
    seconds = soaks[0].plan.seconds
    done, left = min(1.0, passed_sec / seconds), max(0, int(seconds - passed_sec))
    bar = "#" * int(BAR * done) + "." * (BAR - int(BAR * done))
    loads = [(soak.backend, soak.load) for soak in soaks if soak.load is not None]
    runs = ", ".join(f"{backend} {load.ended:,} runs" for backend, load in loads)
    wrong = sum(len(load.wrong) for _, load in loads)
    return f"[{bar}] {left // 60}:{left % 60:02} left; {runs}; {wrong} violations"


if __name__ == "__main__":
    sys.exit(main())
