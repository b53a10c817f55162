"""Count the statements, round trips, rows and log bytes of each operation, as the databases count them.

    python -m benchmarks.statements
    python -m benchmarks.statements --database postgresql --size 1
    python -m benchmarks.statements --indexes --json benchmarks/results/statements.json

Each operation is counted alone and as a group commit of 100 runs, per run. `step in a run` is of whole ten-step
workflows, 100 at once, executed by the engine. With --indexes, print the indexes that no operation of the storage uses.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import progress
from benchmarks.databases import fresh_database, server_for
from benchmarks.engine.measures import IN_FLIGHT, ten_steps
from benchmarks.engine.report import circumstances
from benchmarks.statements.counters import FIGURES, counting, settled
from benchmarks.statements.indexes import unused_indexes
from benchmarks.statements.operations import OPERATIONS, Stage
from perdure import App
from perdure.storage.stores import open_storage
from tests.support.databases import DATABASES

NAME, COLUMN = 34, 13
Counted = dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.statements", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", nargs="+", choices=DATABASES, default=DATABASES, metavar="NAME")
    parser.add_argument("--size", nargs="+", type=int, default=[1, 100], metavar="N", help="runs in a group commit")
    parser.add_argument("--indexes", action="store_true", help="print the indexes that no operation uses, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was counted to a file, too")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    for database in options.database:
        with server_for(database) as server:
            found[database] = asyncio.run(_count_all(database, server, options))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**circumstances(), "databases": found}, indent=2) + "\n")
    return 0


async def _count_all(database: str, server: str, options: argparse.Namespace) -> dict[str, Any]:
    print(f"{f'{database}, per run':{NAME}}" + "".join(f"{name:>{COLUMN}}" for name in FIGURES), flush=True)
    operations: dict[str, dict[str, Counted]] = {}
    async with fresh_database(database, server) as url:
        for size in options.size:
            for name in OPERATIONS:
                progress.show(f"{database}: {name}, {size}")
                counted = await _operation(url, name, size)
                progress.show("")
                operations.setdefault(name, {})[str(size)] = counted
                print(_line(f"{name}, group of {size}", counted), flush=True)
        operations["step in a run"] = {str(IN_FLIGHT): await _steps(url)}
        print(_line("step in a run, 100 at once", operations["step in a run"][str(IN_FLIGHT)]), flush=True)
    found: dict[str, Any] = {"operations": operations}
    if options.indexes:
        progress.show(f"{database}: which indexes are used")
        async with fresh_database(database, server) as url:
            found["unused_indexes"] = await unused_indexes(url)
        progress.show("")
        print(f"indexes of {database} that no operation uses: {', '.join(found['unused_indexes']) or 'none'}")
    return found


def _line(text: str, counted: Counted) -> str:
    cells = (f"{_number(counted[name]) if name in counted else '–':>{COLUMN}}" for name in FIGURES)
    return f"{text:{NAME}}" + "".join(cells)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.2f}"


async def _operation(url: str, name: str, size: int) -> Counted:
    async with counting(url) as counters, open_storage(url) as storage:
        stage = Stage(storage, counters, size)
        await OPERATIONS[name](stage)  # prepares statements and plans, and reads what is cached
        await OPERATIONS[name](stage)
        return {figure: count / size for figure, count in stage.found.items()}


async def _steps(url: str) -> Counted:
    """Count whole runs of ten steps, after as many uncounted ones, and divide by their steps: a tenth of a start and
    of an end belongs to each.
    """
    async with counting(url) as counters, App(url):

        async def run() -> None:
            handles = await asyncio.gather(*(ten_steps.start(number) for number in range(IN_FLIGHT)))
            await asyncio.gather(*(handle.result() for handle in handles))

        await run()
        before = await settled(counters)
        await run()
        after = await settled(counters)
    return {name: (after[name] - before[name]) / IN_FLIGHT / 10 for name in counters.figures}


if __name__ == "__main__":
    sys.exit(main())
