"""A full disk, and a disk that cannot sync: errors say so, no acknowledged write is lost, and work continues.

On SQLite a share of the episodes has workers on it, with workflows, instead of writers on a storage.

Each round has a file system of its own, in memory and small, in a mount namespace that only its process sees.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from tests.chaos.rigs import Outcome, Rig, Round

ROOT = Path(__file__).parents[2]
KINDS = {"sqlite": ("full", "failing", "engine"), "postgresql": ("full", "failing"), "mysql": ("full", "failing")}
ROUND_SEC = 900


async def play(round: Round) -> Outcome:
    """Episodes of all kinds."""
    outcome, kinds = Outcome(0), KINDS[round.backend]
    for number, kind in enumerate(kinds):
        count = len(range(number, round.count, len(kinds)))  # as if they came in turn
        if count:
            part = await episodes(kind, Round(round.backend, round.seed, count, round.folder))
            outcome.done += part.done
            outcome.wrong += part.wrong
            for name, figure in part.figures.items():
                before = outcome.figures.get(name, 0)
                outcome.figures[name] = max(before, figure) if "_max_" in name else before + figure
    return outcome


async def episodes(kind: str, round: Round) -> Outcome:
    """Episodes of one kind, in a process of their own."""
    command = ["unshare", "--mount", sys.executable, "-m", "tests.chaos.disk_process"]
    if os.getuid() != 0:
        command[1:1] = ["--map-current-user", "--keep-caps"]
    what = (kind, round.backend, str(round.seed), str(round.count))
    process = await asyncio.create_subprocess_exec(*command, *what, cwd=ROOT, stdout=PIPE)
    try:
        async with asyncio.timeout(ROUND_SEC):
            output, _ = await process.communicate()
    except BaseException:
        process.kill()
        raise
    assert process.returncode == 0, f"the process with the small disk ended with {process.returncode}"
    return Outcome(**json.loads(output.splitlines()[-1]))


RIG = Rig("disk", "episodes", {"sqlite": 20, "postgresql": 20, "mysql": 20}, 4, play)
