"""Draw the charts of the documentation from the figures in benchmarks/results.

    python -m benchmarks.charts
    python -m benchmarks.charts --results benchmarks/results --images docs/images

A chart whose figures were not measured yet is left out.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine.processes import ROOT
from benchmarks.engine.report import write
from benchmarks.growth.report import chart as growth_chart
from benchmarks.peers.report import chart as peers_chart

CHARTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {"growth": growth_chart, "peers": peers_chart}


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, print the names of the files, and return the exit code: 1 if there are no figures at all."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.charts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", metavar="FOLDER")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images", metavar="FOLDER")
    options = parser.parse_args(arguments)
    found = {name: options.results / f"{name}.json" for name in CHARTS}
    for name, figures in found.items():
        if figures.exists():
            image = options.images / f"{name}.svg"
            write(image, CHARTS[name](json.loads(figures.read_text())))
            print(f"{image}: drawn from {figures}")
        else:
            print(f"{figures} does not exist: run `make bench-{name}` first", file=sys.stderr)
    return int(not any(figures.exists() for figures in found.values()))


if __name__ == "__main__":
    sys.exit(main())
