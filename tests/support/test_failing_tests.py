"""A test that fails or hangs is named in the report, and the other tests still run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARSED = "\n".join(f"def parsed_{number}(a, b): return [a + b * {number}, (a, b), {{a: b}}]" for number in range(1000))
FAILING = """
import asyncio
import gc
import time
import pytest
from tests import conftest

conftest.TIMEOUT_AGAIN_SEC = 0.5

async def test_fails_with_errors_that_nobody_retrieves():
    async def fail():
        raise ValueError([str(number) for number in range(3)][int("7")])

    gc.disable()
    for _ in range(100):
        cycle = [asyncio.create_task(fail())]
        cycle.append(cycle)
        await asyncio.sleep(0)
    del cycle
    gc.set_threshold(3000)  # while pytest parses this file
    gc.enable()
    assert False

@pytest.mark.timeout(0.5)
async def test_hangs():
    async def block_and_get_the_first_timeout():
        while True:
            time.sleep(0.1)
            await asyncio.sleep(0)

    blocking = asyncio.create_task(block_and_get_the_first_timeout())
    await asyncio.Event().wait()

def test_runs():
    pass
"""


def test_failing_and_hanging_tests_are_reported_and_others_still_run(tmp_path: Path) -> None:
    (tmp_path / "test_examples.py").write_text(FAILING + PARSED)
    options = ["-q", "-n0", "--assert=plain", "-pno:cacheprovider", "-ptests.conftest", f"-c{ROOT}/pyproject.toml"]
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", str(tmp_path / "test_examples.py")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert "2 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 1
    assert "Failed: Timeout (>0.5s) from pytest-timeout." in ended.stdout
