"""The engine's model: random workflows of all primitives under random kills, against a model that knows neither.

Its short form is tests/engine/crashes/test_random_workflows.py.
"""

from tests.chaos.rigs import Outcome, Rig, Round
from tests.engine.crashes.rig.databases import own_database
from tests.engine.crashes.rig.random_runs import perform


async def play(round_: Round) -> Outcome:
    async with own_database(round_.backend, round_.folder) as database:
        # no two rounds have a plan in common
        checker, figures = await perform(database, round_.folder, round_.seed * round_.count, round_.count)
    return Outcome(round_.count, checker.wrong, figures)


RIG = Rig("engine-model", "workflows", {"sqlite": 500, "postgresql": 500, "mysql": 500}, 25, play)
