"""Run the same loads on this tree and on another revision, alternating, and print the ratios.

    python -m benchmarks.compare --rev v0.1
    python -m benchmarks.compare --rev main~20 --database postgresql --load one-step --rounds 9

Each measurement is a process of its own on an empty database. The two sides take turns, and each pair gives one ratio:
what slows the machine down for a while slows down both. The printed ratio is the median of the pairs, with the lowest
and the highest; above 1 this tree is faster. CPU time is that of the process, without the server.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks import progress
from benchmarks.compare.loads import LOADS
from benchmarks.databases import fresh_database, server_for
from tests.support.databases import DATABASES

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--rev", required=True, help="the revision to compare with, or a folder with its checkout")
    parser.add_argument("--database", nargs="+", choices=DATABASES, default=DATABASES, metavar="NAME")
    parser.add_argument("--load", nargs="+", choices=LOADS, default=list(LOADS), metavar="NAME", help=", ".join(LOADS))
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="pairs of each load (default: 5)")
    parser.add_argument("--steps", type=int, default=4000, metavar="N", help="steps of a measurement (default: 4000)")
    options = parser.parse_args(arguments)
    with _checked_out(options.rev) as other:
        print(f"{'database':12}{'load':10}{'steps/s':>9}{'other':>9}{'ratio':>8}{'lowest':>8}{'highest':>8}{'CPU':>7}")
        for database in options.database:
            with server_for(database) as server:
                for load in options.load:
                    asyncio.run(_compare(database, server, load, other, options))
    return 0


async def _compare(database: str, server: str, load: str, other: Path, options: argparse.Namespace) -> None:
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    for round_number in range(options.rounds):
        progress.show(f"{database}, {load}: pair {round_number + 1} of {options.rounds}")
        first, second = (ROOT, other) if round_number % 2 else (other, ROOT)
        one = await _measure(first, database, server, load, options.steps)
        two = await _measure(second, database, server, load, options.steps)
        pairs.append((one, two) if first is ROOT else (two, one))
    progress.show("")
    ratios = [ours["steps_per_second"] / theirs["steps_per_second"] for ours, theirs in pairs]
    cpu = median(theirs["cpu_us_per_step"] / ours["cpu_us_per_step"] for ours, theirs in pairs)
    speeds = [median(pair[side]["steps_per_second"] for pair in pairs) for side in (0, 1)]
    print(
        f"{database:12}{load:10}{speeds[0]:9,.0f}{speeds[1]:9,.0f}"
        f"{median(ratios):8.2f}{min(ratios):8.2f}{max(ratios):8.2f}{cpu:7.2f}",
        flush=True,
    )


async def _measure(tree: Path, database: str, server: str, load: str, steps: int) -> dict[str, float]:
    async with fresh_database(database, server) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("loads.py")),
            url,
            load,
            str(steps),
            env=os.environ | {"PYTHONPATH": str(tree / "src")},
            stdout=subprocess.PIPE,
        )
        output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"the load {load} failed on {database} with the sources in {tree}")
    result: dict[str, float] = json.loads(output)
    return result


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
