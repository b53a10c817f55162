"""Fault enumerator: every kind of fault at every call of every storage operation, and of six runs.

It goes by themes, one after the other: an operation in one of its ways, or a run with one kind of fault, each at all of
its calls. What a theme comes to is counted in cases.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from tests.chaos.rigs import Outcome, Rig, Round
from tests.engine.crashes.rig.databases import opened, own_server
from tests.engine.crashes.rig.effect_log import EFFECTS
from tests.faults.calls import Kind
from tests.faults.enumerator import Enumerator, all_pairs, enumerating
from tests.faults.workers import KINDS, Openings, RunCase, RunPlayer, open_player
from tests.faults.workflows import PLAYS
from tests.support.databases import DATABASES, named_database
from tests.support.storages import Database

PLAYERS = 4  # databases at once, since most of it is waiting

THEMES: list[tuple[str, str]] = [*all_pairs(), *product(PLAYS, KINDS)]


@dataclass(slots=True)
class SharedState:
    """What the players of a round share."""

    themes: Iterator[tuple[str, str]]
    effects: Path
    openings: Openings = field(default_factory=Openings)
    outcome: Outcome = field(default_factory=lambda: Outcome(0, figures={"storage_cases": 0, "run_cases": 0}))

    async def serve(self, database: Database) -> None:
        """Play one theme after the other."""
        async with enumerating(database) as enumerator, open_player(database, self.effects, self.openings) as workers:
            for theme in self.themes:
                if theme[0] in PLAYS:
                    await self._play_runs(workers, theme[0], Kind(theme[1]))
                else:
                    await self._play_storage(enumerator, theme)
                self.outcome.done += 1

    async def _play_storage(self, enumerator: Enumerator, pair: tuple[str, str]) -> None:
        for case in await enumerator.cases([pair]):
            wrong = await enumerator.play(case)
            self.outcome.wrong += [f"{each} (PERDURE_FAULTS={case} pytest tests/faults)" for each in wrong]
            self.outcome.figures["storage_cases"] += 1

    async def _play_runs(self, workers: RunPlayer, play: str, kind: Kind) -> None:
        """Until a worker has no such call any more."""
        number = 1
        while (ended := await workers.play(RunCase(play, kind, number))).hit:
            self.outcome.wrong += ended.wrong
            longest = self.outcome.figures.get("run_max_sec", 0)
            self.outcome.figures["run_max_sec"] = max(longest, round(ended.seconds, 2))
            self.outcome.figures["run_cases"] += 1
            number += 1


async def play(round_: Round) -> Outcome:
    """So many themes from the one whose number is the seed."""
    effects = round_.folder / "effects"
    effects.touch()
    EFFECTS.open(effects)
    state = SharedState(iter(THEMES[round_.seed : round_.seed + round_.count]), effects)
    async with AsyncExitStack() as stack:
        stack.callback(EFFECTS.close)
        stack.enter_context(state.openings.watching())
        urls = [f"sqlite:///{round_.folder}/player{number}.db" for number in range(PLAYERS)]
        if round_.backend != "sqlite":
            server = await stack.enter_async_context(own_server(round_.backend))
            urls = [await named_database(server.url, f"player{number}") for number in range(PLAYERS)]
        databases = [await stack.enter_async_context(opened(Database(round_.backend, url))) for url in urls]
        async with asyncio.TaskGroup() as group:
            for database in databases:
                group.create_task(state.serve(database))
    return state.outcome


RIG = Rig("faults", "themes", dict.fromkeys(DATABASES, len(THEMES)), 12, play, in_order=True)
