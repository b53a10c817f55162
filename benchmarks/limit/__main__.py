"""Measure what the disk, the databases and their drivers allow, and print the medians.

    python -m benchmarks.limit
    python -m benchmarks.limit --database postgresql --measure rows prototype-ten-step --rounds 3
    python -m benchmarks.limit --json benchmarks/results/limit.json

No figure of the engine can be higher than these. Everything is as durable as with perdure: each commit is synced. The
prototype executes the same programs as `python -m benchmarks.engine` on the same drivers, with group commit and
nothing else: no leases, no replay, no checks.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.engine.command import Command
from benchmarks.engine.processes import measure
from benchmarks.limit import pgbench
from benchmarks.limit.measures import MEASURES, ONLY

SCRIPT = Path(__file__).with_name("measures.py")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    measures, only = dict(MEASURES), dict(ONLY)
    if pgbench.program() is None:
        missing = [name for name in measures if name.startswith("pgbench")]
        measures |= {name: measures[name]._replace(what=f"{measures[name].what}: not installed") for name in missing}
        only |= dict.fromkeys(missing, ())
    take = partial(measure, script=SCRIPT)
    return Command("python -m benchmarks.limit", __doc__, measures, take, only).run(arguments)


if __name__ == "__main__":
    sys.exit(main())
