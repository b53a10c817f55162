"""Fault enumerator: every kind of fault at every call of every storage operation, and of six runs.

It goes by themes: an operation in one of its ways, or a run with one kind of fault, each at all of its calls. A round
takes up where the last one ended, by the ledger; one with a small seed begins at the theme of that number.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from tests.chaos.ledger import Ledger
from tests.chaos.rigs import Outcome, Rig, Round
from tests.engine.rig.effects import EFFECTS
from tests.engine.rig.places import opened, own_server
from tests.faults.calls import Kind
from tests.faults.enumerator import Enumerator, all_pairs, enumerating
from tests.faults.runs import PLAYS
from tests.faults.workers import KINDS, Lane, Openings, RunCase, lane
from tests.servers.databases import named_database
from tests.storages import Database

LANES = 4  # databases at once, since most of it is waiting
NAME = "faults"

THEMES: list[tuple[str, str]] = [*all_pairs(), *product(PLAYS, KINDS)]


@dataclass(slots=True)
class Room:
    """What the lanes of a round share."""

    count: int
    themes: Iterator[tuple[str, str]]
    effects: Path
    openings: Openings = field(default_factory=Openings)
    outcome: Outcome = field(default_factory=lambda: Outcome(0, figures={"themes": 0, "storage": 0, "runs": 0}))

    async def serve(self, database: Database) -> None:
        """Play one theme after the other, until there were enough cases."""
        async with enumerating(database) as enumerator, lane(database, self.effects, self.openings) as workers:
            while self.outcome.done < self.count and (theme := next(self.themes, None)):
                if theme[0] in PLAYS:
                    await self._play_runs(workers, theme[0], Kind(theme[1]))
                else:
                    await self._play_storage(enumerator, theme)
                self.outcome.figures["themes"] += 1

    async def _play_storage(self, enumerator: Enumerator, pair: tuple[str, str]) -> None:
        for case in await enumerator.cases([pair]):
            wrong = await enumerator.play(case)
            self.outcome.wrong += [f"{each} (PERDURE_FAULTS={case} pytest tests/faults)" for each in wrong]
            self._count("storage")

    async def _play_runs(self, workers: Lane, play: str, kind: Kind) -> None:
        """Until a worker has no such call any more."""
        number = 1
        while (ended := await workers.play(RunCase(play, kind, number))).hit:
            self.outcome.wrong += ended.wrong
            longest = self.outcome.figures.get("run_max_sec", 0)
            self.outcome.figures["run_max_sec"] = max(longest, round(ended.seconds, 2))
            self._count("runs")
            number += 1

    def _count(self, what: str) -> None:
        self.outcome.done += 1
        self.outcome.figures[what] += 1


async def play(round_: Round) -> Outcome:
    """Whole themes, until there were so many cases."""
    played = int(Ledger(NAME, round_.backend).totals().figures.get("themes", 0))
    first = round_.seed if round_.seed < len(THEMES) else played % len(THEMES)
    effects = round_.folder / "effects"
    effects.touch()
    EFFECTS.open(effects)
    room = Room(round_.count, iter(THEMES[first:]), effects)
    async with AsyncExitStack() as stack:
        stack.enter_context(room.openings.watching())
        urls = [f"sqlite:///{round_.folder}/lane{number}.db" for number in range(LANES)]
        if round_.backend != "sqlite":
            server = await stack.enter_async_context(own_server(round_.backend))
            urls = [await named_database(server.url, f"lane{number}") for number in range(LANES)]
        databases = [await stack.enter_async_context(opened(Database(round_.backend, url))) for url in urls]
        async with asyncio.TaskGroup() as group:
            for database in databases:
                group.create_task(room.serve(database))
    return room.outcome


RIG = Rig(NAME, "cases", {"sqlite": 13500, "postgresql": 18500, "mysql": 14500}, 1000, play)
