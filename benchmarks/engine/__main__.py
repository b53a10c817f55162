"""Measure the engine on each database, and print the medians.

    python -m benchmarks.engine
    python -m benchmarks.engine --database sqlite --measure ten-step latency --rounds 3
    python -m benchmarks.engine --json benchmarks/results/engine.json

Each measurement is a process of its own on an empty database that syncs every commit. The databases take turns, so that
what slows the machine down for a while does not slow down only one of them. Speeds of different machines cannot be
compared: to compare two versions of the code, use `make bench-compare`.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import progress
from benchmarks.databases import server_for
from benchmarks.engine.measures import MEASURES, Figures
from benchmarks.engine.processes import measure
from benchmarks.engine.report import as_json, heading, line
from tests.support.databases import DATABASES


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parser().parse_args(arguments)
    found: dict[str, dict[str, list[Figures]]] = {}
    with ExitStack() as stack:
        servers = {database: stack.enter_context(server_for(database)) for database in options.database}
        print(heading(options.database), flush=True)
        for name in options.measure:
            found[name] = asyncio.run(_rounds(name, servers, options))
            print(line(name, found[name]), flush=True)
            if options.json is not None:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(as_json(found), indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", nargs="+", choices=DATABASES, default=DATABASES, metavar="NAME")
    parser.add_argument(
        "--measure", nargs="+", choices=MEASURES, default=list(MEASURES), metavar="NAME", help=", ".join(MEASURES)
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each measurement (default: 5)")
    parser.add_argument("--size", type=int, metavar="N", help="runs or steps of a measurement (default: its own)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to a file, too")
    return parser


async def _rounds(name: str, servers: dict[str, str], options: argparse.Namespace) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {database: [] for database in servers}
    for number in range(1, options.rounds + 1):
        for database, server in servers.items():
            progress.show(f"{name} on {database}: round {number} of {options.rounds}")
            found[database].append(await measure(name, options.size or MEASURES[name].size, database, server))
    progress.show("")
    return found


if __name__ == "__main__":
    sys.exit(main())
