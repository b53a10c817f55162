"""Measure the engine on each database, and print the medians.

    python -m benchmarks.engine
    python -m benchmarks.engine --database sqlite --measure ten-step latency --rounds 3
    python -m benchmarks.engine --json benchmarks/results/engine.json

Each measurement is a process of its own on an empty database that syncs every commit. The databases take turns, so that
what slows the machine down for a while does not slow down only one of them. Speeds of different machines cannot be
compared: to compare two versions of the code, use `make bench-compare`.
"""

import sys
from collections.abc import Sequence

from benchmarks.engine.command import Command
from benchmarks.engine.measures import MEASURES
from benchmarks.engine.processes import measure


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    return Command("python -m benchmarks.engine", __doc__, MEASURES, measure).run(arguments)


if __name__ == "__main__":
    sys.exit(main())
