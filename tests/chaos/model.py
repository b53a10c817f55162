"""The model: random operations of several workers on one database and on the reference, every answer compared.

A sequence is played one step after the other. Most end with three steps at once: some order of these must
explain every answer and every row.
"""

from collections.abc import Sequence
from random import Random

from tests.chaos.rigs import Outcome, Rig, Round
from tests.engine.crashes.rig.databases import own_database
from tests.storage.properties.comparison import disagreement
from tests.storage.properties.executors import DatabaseUnderTest
from tests.storage.properties.reference import ReferenceUnderTest
from tests.storage.properties.sequences import BEFORE_BURST, WORKERS, burst, sequence
from tests.storage.properties.steps import Step, in_turn
from tests.support.storages import Database

TRIES = 3  # at what happens at once


async def play(round_: Round) -> Outcome:
    async with own_database(round_.backend, round_.folder) as database:
        return await compare(database, Random(round_.seed), round_.count)


async def compare(database: Database, chance: Random, count: int) -> Outcome:
    """Sequence after sequence, until that many steps were compared."""
    subject = DatabaseUnderTest(database.backend, [await database.storage() for _ in range(WORKERS)])
    reference, outcome = ReferenceUnderTest(WORKERS), Outcome(0, figures={"sequences": 0, "bursts": 0})
    while outcome.done < count and not outcome.wrong:
        if outcome.figures["sequences"] % 4 < 3:  # by turns: a short round has bursts, too, whatever its seed
            steps, at_once = sequence(chance, BEFORE_BURST), burst(chance)
        else:
            steps, at_once = sequence(chance), []
        wrong = await (
            _explain(subject, reference, steps, at_once) if at_once else disagreement([reference, subject], steps)
        )
        outcome.wrong += [wrong] if wrong else []
        outcome.done += len(steps) + len(at_once)
        outcome.figures["sequences"] += 1
        outcome.figures["bursts"] += bool(at_once)
    return outcome


async def _explain(
    subject: DatabaseUnderTest, reference: ReferenceUnderTest, steps: Sequence[Step], at_once: Sequence[Step]
) -> str:
    wrong = await reference.explain(steps, at_once, await subject.run(steps, at_once))
    for number in reversed(range(len(steps))) if wrong else ():  # the fewest steps before, as far as chance lets see
        fewer = in_turn([*steps[:number], *steps[number + 1 :]])
        for _ in range(TRIES):
            still = await reference.explain(fewer, at_once, await subject.run(fewer, at_once))
            if still and len(fewer) < len(steps):
                wrong, steps = still, fewer
                break
    return wrong


RIG = Rig("model", "steps", {"sqlite": 200_000, "postgresql": 200_000, "mysql": 200_000}, 10_000, play)
