"""Check that a test detects a bug: it runs on a copy of the sources with the bug, and must fail."""

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path

from tests.planted.bugs import ROOT, Bug

FAILED = 1  # pytest's exit code if tests ran and some failed
LONGEST_SEC = 180


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a bug."""

    caught_by: str | None
    trouble: str = ""


async def hunt(bug: Bug) -> Verdict:
    """Run the bug's tests, one argument after the other, until one fails."""
    with tempfile.TemporaryDirectory() as folder:
        source = bug.plant(Path(folder))
        for test in bug.caught_by:
            code, said = await run(source, test)
            if code == FAILED:
                return Verdict(test)
            if code != 0:
                return Verdict(None, f"{test} did not run: {said}")
    return Verdict(None)


async def run(source: Path, *tests: str, longest_sec: float = LONGEST_SEC) -> tuple[int, str]:
    """Run tests against these sources; return pytest's exit code and its last words. A test that hangs has failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=60", *tests]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"PERDURE_CRASH_POINTS": "all", "PERDURE_TAKEOVER": "all"}  # not by chance
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
    )
    try:
        async with asyncio.timeout(longest_sec):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return FAILED, "it did not end"
    lines = output.decode(errors="replace").strip().splitlines()
    code = process.returncode if process.returncode is not None else -1
    return FAILED if code == 1 or _hung(lines) else code, lines[-1] if lines else "nothing"


def _hung(lines: list[str]) -> bool:
    """pytest-timeout's thread ends the whole process when a test hangs."""
    return any("+ Timeout +" in line for line in lines)
