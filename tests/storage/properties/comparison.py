"""Run the same steps on several lanes, and find where their results first differ."""

import asyncio
import itertools
from collections.abc import Sequence

from tests.storage.properties.executors import Lane
from tests.storage.properties.steps import Step, in_turn

Answers = dict[str, list[str]]


async def run_all(lanes: Sequence[Lane], steps: Sequence[Step]) -> Answers:
    """Each lane's answers; who has fewer workers than the steps need sits out."""
    workers = 1 + max((step.worker for step in steps), default=0)
    able = [lane for lane in lanes if len(lane.sides) >= workers]
    async with asyncio.TaskGroup() as group:
        tasks = {lane.name: group.create_task(lane.run(steps)) for lane in able}
    return {name: task.result() for name, task in tasks.items()}


def difference(answers: Answers, steps: Sequence[Step]) -> str:
    """Where the lanes first disagree, and what each says; nothing if they agree."""
    places = [f"step {number}, {step}" for number, step in enumerate(steps)]
    for place, *told in itertools.zip_longest(places, *answers.values()):
        if len(set(told)) > 1:
            lines = [f"\n  {name}: {answer}" for name, answer in zip(answers, told, strict=True)]
            return f"answers differ on {place or 'what is in the tables'}{''.join(lines)}"
    return ""


async def disagreement(lanes: Sequence[Lane], steps: Sequence[Step]) -> str:
    """How the lanes disagree, and the fewest of these steps that it takes; nothing if they agree."""
    found = difference(await run_all(lanes, steps), steps)
    for number in reversed(range(len(steps))) if found else ():
        fewer = in_turn([*steps[:number], *steps[number + 1 :]])
        still = difference(await run_all(lanes, fewer), fewer)
        if still and len(fewer) < len(steps):
            found, steps = still, fewer
    return "\n".join([found, "of", *(f"  {step}," for step in steps)]) if found else ""
