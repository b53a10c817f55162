"""Run the same loads on this tree and on another revision, alternating, and print the ratios.

    python -m benchmarks.compare --rev v0.1
    python -m benchmarks.compare --rev main~20 --database postgresql --measure one-step latency --rounds 9

Each measurement is a process of its own on an empty database. The two sides take turns, and each pair gives one ratio:
what slows the machine down for a while slows down both. The printed ratio is the median of the pairs, with the lowest
and the highest; above 1 this tree is better. CPU time is that of the process, without the server.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks import progress
from benchmarks.databases import server_for
from benchmarks.engine.measures import MEASURES, Figures
from benchmarks.engine.processes import ROOT, measure
from benchmarks.engine.report import ratios
from tests.support.databases import DATABASES

THROUGHPUT = ["one-step", "ten-step", "fan"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--rev", required=True, help="the revision to compare with, or a folder with its checkout")
    parser.add_argument("--database", nargs="+", choices=DATABASES, default=DATABASES, metavar="NAME")
    parser.add_argument(
        "--measure", nargs="+", choices=MEASURES, default=THROUGHPUT, metavar="NAME", help=", ".join(MEASURES)
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="pairs of each measurement (default: 5)")
    parser.add_argument("--size", type=int, metavar="N", help="runs or steps of a measurement (default: its own)")
    options = parser.parse_args(arguments)
    with _checked_out(options.rev) as other:
        columns = f"{'ratio':>7}{'lowest':>8}{'highest':>8}{'CPU':>7}"
        print(f"{'database':12}{'measure':15}{'this':>9}{'other':>9} {'':8}{columns}")
        for database in options.database:
            with server_for(database) as server:
                for name in options.measure:
                    asyncio.run(_compare(database, server, name, other, options))
    return 0


async def _compare(database: str, server: str, name: str, other: Path, options: argparse.Namespace) -> None:
    pairs: list[tuple[Figures, Figures]] = []
    size = options.size or MEASURES[name].size
    for round_number in range(options.rounds):
        progress.show(f"{database}, {name}: pair {round_number + 1} of {options.rounds}")
        first, second = (ROOT, other) if round_number % 2 else (other, ROOT)
        one = await measure(name, size, database, server, first)
        two = await measure(name, size, database, server, second)
        pairs.append((one, two) if first is ROOT else (two, one))
    progress.show("")
    found = ratios(name, [ours for ours, _ in pairs], [theirs for _, theirs in pairs])
    ours, theirs = (median(pair[side]["value"] for pair in pairs) for side in (0, 1))
    cpu = [theirs["cpu_us"] / ours["cpu_us"] for ours, theirs in pairs if "cpu_us" in ours]
    print(
        f"{database:12}{name:15}{_number(ours):>9}{_number(theirs):>9} {MEASURES[name].unit:8}"
        f"{median(found):7.2f}{min(found):8.2f}{max(found):8.2f}{f'{median(cpu):7.2f}' if cpu else ''}",
        flush=True,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


@contextmanager
def _checked_out(revision: str) -> Iterator[Path]:
    if (Path(revision) / "src").is_dir():
        yield Path(revision).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="perdure-revision-") as folder:
        archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, stdout=subprocess.PIPE)
        if archive.returncode:
            raise SystemExit(f"there is no revision {revision!r}, and no folder of this name with src in it")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
