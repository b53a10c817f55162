"""Measure how much of each driver's own speed the storage layer keeps: `python -m benchmarks.storage`.

Every case runs through the library and by hand on the bare driver: same data, same durability, same number of
connections, alternating rounds. The ratio is that of the medians. Missed targets are printed, and with --strict they
set the exit code.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks import progress
from benchmarks.storage import data, report
from benchmarks.storage.cases import CALLERS_MAX, CASES
from benchmarks.storage.databases import opened
from benchmarks.storage.rounds import Result, measure
from benchmarks.storage.sides import Ours
from tests.support.databases import DATABASES


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not 0 < min(options.callers) <= max(options.callers) <= CALLERS_MAX:
        parser.error(f"--callers must be 1 to {CALLERS_MAX}, because each needs instances of its own")
    with asyncio.Runner(loop_factory=_loop_factory(options.uvloop)) as runner:
        results = runner.run(_measure_all(options))
    for database, gain in report.gains(results):
        print(report.gain_line(database, gain))
    if options.json:
        Path(options.json).write_text(json.dumps(report.as_json(results), indent=1) + "\n")
    return int(options.strict and report.missed(results))


def _parser() -> argparse.ArgumentParser:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser("python -m benchmarks.storage", description=__doc__)
    parser.add_argument("--database", nargs="+", choices=DATABASES, default=DATABASES, metavar="NAME")
    parser.add_argument("--case", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--callers", nargs="+", type=int, default=[1, 16, 64], metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each side (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.25, metavar="S", help="duration of a round (default: 0.25)")
    parser.add_argument("--uvloop", action="store_true", help="run both sides on uvloop")
    parser.add_argument("--json", metavar="FILE", help="write every round to this file")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target was missed")
    return parser


def _loop_factory(uvloop: bool) -> "type[asyncio.AbstractEventLoop] | None":
    if not uvloop:
        return None
    from uvloop import Loop

    return Loop


async def _measure_all(options: argparse.Namespace) -> list[Result]:
    results: list[Result] = []
    cases = [case for case in CASES if case.name in options.case]
    print(report.HEADER)
    for database in options.database:
        progress.show(f"{database}: starting, {data.INSTANCES} instances")
        async with opened(database) as (storage, raw):
            await data.fill(storage)
            ours = Ours(storage)
            for case, callers in product(cases, options.callers):
                progress.show(f"{database}: {case.title}, callers: {callers}")
                result = Result(database, case, callers)
                await measure(result, storage, raw, ours, options.rounds, options.seconds)
                results.append(result)
                progress.show("")
                print(report.line(result), flush=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
