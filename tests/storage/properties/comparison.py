"""Run the same steps on several databases, and find where their results first differ."""

import asyncio
import itertools
from collections.abc import Sequence

from tests.storage.properties.executors import DatabaseUnderTest
from tests.storage.properties.steps import Step, in_turn

Answers = dict[str, list[str]]


async def run_all(subjects: Sequence[DatabaseUnderTest], steps: Sequence[Step]) -> Answers:
    """Return the answers of each database, without those that have fewer workers than the steps need."""
    workers = 1 + max((step.worker for step in steps), default=0)
    able = [subject for subject in subjects if len(subject.sides) >= workers]
    async with asyncio.TaskGroup() as group:
        tasks = {subject.name: group.create_task(subject.run(steps)) for subject in able}
    return {name: task.result() for name, task in tasks.items()}


def difference(answers: Answers, steps: Sequence[Step]) -> str:
    """Return where the databases first disagree, and what each answers; nothing if they agree."""
    places = [f"step {number}, {step}" for number, step in enumerate(steps)]
    for place, *results in itertools.zip_longest(places, *answers.values()):
        if len(set(results)) > 1:
            lines = [f"\n  {name}: {answer}" for name, answer in zip(answers, results, strict=True)]
            return f"answers differ on {place or 'what is in the tables'}{''.join(lines)}"
    return ""


async def disagreement(subjects: Sequence[DatabaseUnderTest], steps: Sequence[Step]) -> str:
    """Return how the databases disagree, and the fewest of these steps that show it; nothing if they agree."""
    found = difference(await run_all(subjects, steps), steps)
    for number in reversed(range(len(steps))) if found else ():
        fewer = in_turn([*steps[:number], *steps[number + 1 :]])
        still = difference(await run_all(subjects, fewer), fewer)
        if still and len(fewer) < len(steps):
            found, steps = still, fewer
    return "\n".join([found, "of", *(f"  {step}," for step in steps)]) if found else ""
