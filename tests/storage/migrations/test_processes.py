"""Many real processes start at once, and some of them die while they migrate."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.storage.migrations import versions
from tests.storage.migrations.databases import Database

ROOT = Path(__file__).parents[3]
NEVER, DIED = 0, 9


def start_all(database: Database, lives: Sequence[int]) -> tuple[list[int], list[list[str]]]:
    """Start a process for each number of statements it may run; return their exit codes, and what those applied that
    did not die."""
    command = [sys.executable, "-m", "tests.storage.migrations.starting_process", database.url, *map(str, lives)]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, env=os.environ | paths, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=100, check=True
    )
    *applied, codes = map(json.loads, done.stdout.splitlines())
    return codes, applied


@pytest.mark.pitfall(46)
async def test_concurrent_starts_find_finished_tables_although_some_crash(database: Database) -> None:
    codes, applied = start_all(database, [20, 60, 100, *[NEVER] * 5])

    assert codes[3:] == [0] * 5
    assert set(codes[:3]) <= {0, DIED}  # a late process has nothing left to execute
    assert len(applied) == codes.count(0)
    newly = sorted(version for each in applied for version in each)
    # Nothing was applied twice; what the killed processes applied is in no report.
    assert newly == versions(database.dialect)[-len(newly) :]
    assert await database.migrate() == []
