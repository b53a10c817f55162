"""Many real processes start at once, and some of them die while they migrate."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from perdure.storage.migrations import versions
from tests.storage.migrations.databases import Database

ROOT = Path(__file__).parents[3]
NEVER, DIED = 0, 9
PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def start_all(database: Database, lives: Sequence[int]) -> list[tuple[int, str]]:
    """Start a process for each number of statements it may run; return their exit codes and what they printed."""
    command = [sys.executable, "-m", "tests.storage.migrations.starting_process", database.url]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with ExitStack() as stack:
        processes: list[Any] = [
            stack.enter_context(subprocess.Popen([*command, str(life)], env=os.environ | paths, cwd=ROOT, **PIPES))
            for life in lives
        ]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        return [(process.wait(timeout=60), process.stdout.read()) for process in processes]


@pytest.mark.pitfall(46)
async def test_concurrent_starts_find_finished_tables_although_some_crash(database: Database) -> None:
    ended = start_all(database, [20, 60, 100, *[NEVER] * 5])

    assert [code for code, _ in ended[3:]] == [0] * 5
    assert {code for code, _ in ended[:3]} <= {0, DIED}  # a late process has nothing left to execute
    newly = sorted(version for code, output in ended if code == 0 for version in json.loads(output))
    # Nothing was applied twice; what the killed processes applied is in no report.
    assert newly == versions(database.dialect)[-len(newly) :]
    assert await database.migrate() == []
