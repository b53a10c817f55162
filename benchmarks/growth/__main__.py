"""Measure how the cost of one run, step, wait or event changes as there are more of them.

    python -m benchmarks.growth
    python -m benchmarks.growth --curve park where --database sqlite --most 10000 --rounds 1
    python -m benchmarks.growth --curve waiting --size 0 1000000
    python -m benchmarks.growth --json benchmarks/results/growth.json --chart docs/images/growth.svg

Each point of a curve is a process of its own on an empty database that syncs every commit, but for throughput beside
finished and waiting runs: there the same database grows from point to point. A point has the time for one item, and
its ratio to that of the first point: about 1.0 is linear growth. `met` or `missed` says whether a curve reaches its
goal. The file of --json keeps the curves that are not measured again, and states the circumstances of each.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import progress
from benchmarks.databases import fresh_database, server_for
from benchmarks.engine.measures import MEASURES, Figures
from benchmarks.engine.processes import ENGINE, measure, play
from benchmarks.engine.report import circumstances, write
from benchmarks.growth.copies import add_copies, create_original
from benchmarks.growth.curves import CURVES, Curve
from benchmarks.growth.report import as_json, chart, heading, lines
from tests.support.databases import DATABASES

LOADS = Path(__file__).with_name("loads.py")
Points = dict[int, list[Figures]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parser().parse_args(arguments)
    found: dict[str, dict[str, Points]] = {}
    with ExitStack() as stack:
        servers = {database: stack.enter_context(server_for(database)) for database in options.database}
        around = circumstances(servers)
        print(heading(options.database), flush=True)
        for number, name in enumerate(options.curve):
            progress.show_share(number, len(options.curve), name)
            found[name] = asyncio.run(_points(name, servers, options))
            progress.show("")
            print("\n".join(lines(name, options.database, found[name])), flush=True)
            if options.json is not None:
                _add(options.json, as_json(found, around))
            if options.chart is not None:
                write(options.chart, chart(as_json(found, around)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, names = parser.add_argument, list(CURVES)
    add("--database", nargs="+", choices=DATABASES, default=DATABASES, metavar="NAME")
    add("--curve", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    add("--rounds", type=int, default=3, metavar="N", help="measurements at each size (default: 3)")
    add("--size", nargs="+", type=int, metavar="N", help="the sizes of each curve (default: its own)")
    add("--most", type=int, metavar="N", help="leave out the sizes above this one")
    add("--steps", type=int, metavar="N", help="steps of a throughput measurement (default: that of `make bench`)")
    add("--json", type=Path, metavar="FILE", help="add everything that was measured to a file, too")
    add("--chart", type=Path, metavar="FILE", help="draw these curves as SVG, too")
    return parser


def _add(path: Path, measured: dict[str, Any]) -> None:
    """Write curves to a file; those in it that were not measured again are kept."""
    kept = json.loads(path.read_text())["curves"] if path.exists() else {}
    curves = kept | measured["curves"]
    ordered = {name: curves[name] for name in CURVES if name in curves}
    write(path, json.dumps({"curves": ordered}, indent=2) + "\n")


def _sizes(curve: Curve, options: argparse.Namespace) -> list[int]:
    sizes = sorted(options.size or curve.sizes)
    return [size for size in sizes if options.most is None or size <= options.most]


async def _points(name: str, servers: dict[str, str], options: argparse.Namespace) -> dict[str, Points]:
    curve = CURVES[name]
    fitting = {database: server for database, server in servers.items() if database in curve.databases}
    if curve.copies is not None:
        return {
            database: await _beside(name, curve.copies, database, fitting[database], options) for database in fitting
        }
    found: dict[str, Points] = {database: {} for database in fitting}
    for size in _sizes(curve, options):
        for number in range(options.rounds):
            for database, server in fitting.items():
                progress.show(f"{name} of {size:,} on {database}: round {number + 1} of {options.rounds}")
                figures = await measure(name, size, database, server, script=LOADS)
                found[database].setdefault(size, []).append(figures)
    return found


async def _beside(name: str, kind: str, database: str, server: str, options: argparse.Namespace) -> Points:
    """Measure the throughput on one database, with more and more runs in it."""
    points: Points = {}
    steps = options.steps or MEASURES["ten-step"].size
    async with fresh_database(database, server) as url:
        await create_original(url, kind)
        copies = 0
        for size in _sizes(CURVES[name], options):
            progress.show(f"{name} on {database}: adding {size - copies:,} runs")
            await add_copies(url, kind, copies, size)
            copies = size
            points[size] = []
            for number in range(options.rounds):
                progress.show(f"{name} of {size:,} on {database}: round {number + 1} of {options.rounds}")
                throughput = await play(ENGINE, "ten-step", url, steps)
                points[size].append({"value": 1e6 / throughput["value"]})
    return points


if __name__ == "__main__":
    sys.exit(main())
