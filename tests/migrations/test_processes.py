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
from tests.migrations.databases import Database

ROOT = Path(__file__).parents[2]
NEVER = 0
PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def start_all(database: Database, lives: Sequence[int]) -> list[tuple[int, str]]:
    """Start a process for each number of statements it may run; give their exit codes and what they printed."""
    command = [sys.executable, "-m", "tests.migrations.start", database.url]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen([*command, str(life)], env=os.environ | paths, cwd=ROOT, **PIPES))
            for life in lives
        ]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        return [(process.wait(timeout=60), process.stdout.read()) for process in processes]


@pytest.mark.parametrize("dying", [0, 3])
async def test_every_process_returns_to_finished_tables(database: Database, dying: int) -> None:
    ended = start_all(database, [*range(20, 20 + dying), *[NEVER] * (10 - dying)])

    codes = sorted(code for code, _ in ended)
    assert set(codes) <= {0, 9}
    assert codes.count(0) >= 10 - dying
    applied = [json.loads(output) for code, output in ended if code == 0]
    # What a process that died had applied is in no report.
    newly = sorted(version for report in applied for version in report)
    assert newly == versions(database.dialect)[len(versions(database.dialect)) - len(newly) :]
    assert newly or dying
    assert await database.migrate() == []
