"""Count what the hot path does: instructions, function calls, callbacks of the event loop, statements and rows.

    python -m benchmarks.instructions
    python -m benchmarks.instructions --database sqlite --no-native
    python -m benchmarks.instructions --json benchmarks/results/instructions.json

Counts are per run of a one-step workflow and per step of a ten-step workflow, which includes a tenth of the run's start
and end, 100 in flight, for the process of the worker without the server. They hardly depend on how busy the machine is;
only the number of runs that share a commit does a little. Instructions are the difference of a process with 200 runs
and one with 100, by `perf stat` or else by callgrind, without garbage collections and the work that is done at
intervals. Those of callgrind varied by a factor of two on a busy machine: repeat them and compare the lowest.
The file has an entry for each version, so that releases can be compared.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import progress
from benchmarks.databases import fresh_database, server_for
from benchmarks.engine.measures import IN_FLIGHT
from benchmarks.engine.processes import ROOT
from benchmarks.engine.report import circumstances, number
from benchmarks.instructions import native
from benchmarks.instructions.load import LOADS
from tests.support.databases import DATABASES

SCRIPT = Path(__file__).with_name("load.py")
COUNTED = ("calls", "loop", "database")
TITLES = {
    "instructions": "instructions",
    "python_calls": "calls of Python functions",
    "c_calls": "calls of C functions",
    "callbacks": "callbacks of the event loop",
    "tasks": "tasks created",
    "timers": "timers created",
    "statements": "statements",
    "round_trips": "round trips",
    "commits": "commits",
    "rows_read": "rows read",
    "rows_written": "rows written",
    "log_bytes": "bytes of the log",
}
UNITS = {"one-step": "one-step workflow, per run", "ten-step": "ten-step workflow, per step"}
NAME, COLUMN = 36, 14
Counts = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.instructions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", nargs="+", choices=DATABASES, default=DATABASES, metavar="NAME")
    parser.add_argument("--load", nargs="+", choices=list(LOADS), default=list(LOADS), metavar="NAME")
    parser.add_argument("--runs", type=int, default=300, metavar="N", help="that are counted (default: 300)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="whose median is printed (default: 3)")
    parser.add_argument("--no-native", action="store_true", help="count no instructions, which takes minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the counts of this version to a file, too")
    options = parser.parse_args(arguments)
    tool = None if options.no_native else native.tool()
    if not (tool or options.no_native):
        print("instructions are not counted: neither perf nor valgrind works here", file=sys.stderr)
    found: dict[str, dict[str, Counts]] = {load: {} for load in options.load}
    for database in options.database:
        with server_for(database) as server:
            for load in options.load:
                found[load][database] = asyncio.run(_count(load, database, server, tool, options))
                progress.show("")
    for load, of in found.items():
        print("\n".join(_table(load, of)))
    if options.json is not None:
        _add(options.json, {**circumstances(), "tool": tool, "loads": found})
    return 0


async def _count(load: str, database: str, server: str, tool: str | None, options: argparse.Namespace) -> Counts:
    rounds: list[Counts] = []
    for round_number in range(options.rounds):
        counts: Counts = {}
        for what in COUNTED:
            progress.show(f"{load} on {database}: {what}, round {round_number + 1} of {options.rounds}")
            async with fresh_database(database, server) as url:
                counts |= json.loads(await _output([sys.executable, str(SCRIPT), what, load, url, str(options.runs)]))
        rounds.append(counts)
    found = {name: median(counts[name] for counts in rounds) for name in rounds[0]}
    if tool is not None:
        totals = []
        for runs in (IN_FLIGHT, 2 * IN_FLIGHT):
            progress.show(f"{load} on {database}: instructions of {runs} runs, by {tool}")
            async with fresh_database(database, server) as url:
                command = [sys.executable, str(SCRIPT), "none", load, url, str(runs)]
                totals.append(native.instructions_in(await _output(native.watched(tool, command), errors=True)))
        if None not in totals:
            found["instructions"] = (totals[1] - totals[0]) / IN_FLIGHT / LOADS[load][1]  # type: ignore[operator]
    return found


async def _output(command: Sequence[str], *, errors: bool = False) -> str:
    """Return what a process prints, or what it prints to the standard error."""
    paths = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if errors else None,
    )
    output, report = await process.communicate()
    if process.returncode:
        raise SystemExit(f"a counted process failed: {' '.join(command)}\n{(report or b'').decode()[-2000:]}")
    return (report if errors else output).decode()


def _table(load: str, of: dict[str, Counts]) -> list[str]:
    heading = f"{UNITS[load]:{NAME}}" + "".join(f"{database:>{COLUMN}}" for database in of)
    lines = []
    for name, title in TITLES.items():
        if any(name in counts for counts in of.values()):
            cells = [_cell(counts.get(name)) for counts in of.values()]
            lines.append(f"  {title:{NAME - 2}}" + "".join(f"{cell:>{COLUMN}}" for cell in cells))
    return [heading, *lines]


def _cell(count: float | None) -> str:
    if count is None:
        return "–"
    return number(count) if count >= 10 else f"{count:.2f}"


def _add(path: Path, entry: dict[str, Any]) -> None:
    entries = json.loads(path.read_text()) if path.exists() else {}
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    entries[f"{version('perdure')} {described.stdout.strip()}".strip()] = entry
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entries, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
