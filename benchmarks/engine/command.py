"""The command line of benchmarks that consist of measures: which databases and measures, and how many rounds."""

import argparse
import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import progress
from benchmarks.databases import server_for
from benchmarks.engine.measures import Figures, Measure
from benchmarks.engine.report import as_json, circumstances, heading, line, write
from tests.support.databases import DATABASES

Take = Callable[[str, int, str, str], Coroutine[Any, Any, Figures]]  # a measure of this size on a database of a server


class Command:
    """Measures with a command line. `take` measures once; `only` has the databases of measures that are not for all."""

    def __init__(
        self,
        program: str,
        description: str | None,
        measures: Mapping[str, Measure],
        take: Take,
        only: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._measures, self._take, self._only = measures, take, only or {}
        self._parser = argparse.ArgumentParser(
            program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        names = list(measures)
        add = self._parser.add_argument
        add("--database", nargs="+", choices=DATABASES, default=DATABASES, metavar="NAME")
        add("--measure", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
        add("--rounds", type=int, default=5, metavar="N", help="of each measurement (default: 5)")
        add("--size", type=int, metavar="N", help="size of a measurement (default: its own)")
        add("--json", type=Path, metavar="FILE", help="write everything that was measured to a file, too")

    def run(self, arguments: Sequence[str] | None) -> int:
        """Measure, print, and return the exit code."""
        options = self._parser.parse_args(arguments)
        found: dict[str, dict[str, list[Figures]]] = {}
        with ExitStack() as stack:
            servers = {database: stack.enter_context(server_for(database)) for database in options.database}
            around = circumstances(servers)
            print(heading(options.database), flush=True)
            for name in options.measure:
                found[name] = asyncio.run(self._rounds(name, servers, options))
                print(line(self._measures[name], found[name]), flush=True)
                if options.json is not None:
                    write(options.json, json.dumps(as_json(found, self._measures, around), indent=2) + "\n")
        return 0

    async def _rounds(
        self, name: str, servers: Mapping[str, str], options: argparse.Namespace
    ) -> dict[str, list[Figures]]:
        found: dict[str, list[Figures]] = {database: [] for database in servers}
        size = options.size or self._measures[name].size
        fitting = [database for database in servers if database in self._only.get(name, DATABASES)]
        before = options.measure.index(name) * options.rounds
        for number in range(options.rounds):
            for database in fitting:
                text = f"{name} on {database}: round {number + 1} of {options.rounds}"
                progress.show_share(before + number, len(options.measure) * options.rounds, text)
                found[database].append(await self._take(name, size, database, servers[database]))
        progress.show("")
        return found
