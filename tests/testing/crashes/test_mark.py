"""`@pytest.mark.crash_everywhere` as a user has it: the test is the scenario, and an option repeats one point."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
from perdure import activity, activity_info, sleep, workflow

MAILS = []


@activity
async def charge(order_id: str) -> str:
    return f"receipt for {order_id}"


@workflow
async def order(order_id: str) -> str:
    receipt = await charge(order_id)
    MAILS.append(receipt)
    await sleep(86400)
    return receipt


@pytest.mark.crash_everywhere
async def test_result(perdure):
    run = await order.options(id="order-1").start("A-1")
    assert await run.result() == "receipt for A-1"


@pytest.mark.crash_everywhere(effects=lambda: MAILS, setup=MAILS.clear)
async def test_mails(perdure):
    run = await order.options(id="order-1").start("A-1")
    assert await run.result() == "receipt for A-1"


@pytest.mark.crash_everywhere
async def test_wrong(perdure):
    run = await order.options(id="order-1").start("A-1")
    assert await run.result() == "something else"
"""


def run(folder: Path, *options: str) -> tuple[int, str]:
    """Run pytest elsewhere, as a user does."""
    (folder / "test_order.py").write_text(TESTS)
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "pytest_perdure", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "--asyncio-mode=auto", "--rootdir", str(folder), *options],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_marked_test_is_played_at_every_point(tmp_path: Path) -> None:
    status, output = run(tmp_path, "-s", "test_order.py::test_result")
    assert status == 0, output
    assert "crash_everywhere: 1/" in output


def test_failure_of_a_marked_test_names_the_command_that_repeats_it(tmp_path: Path) -> None:
    status, output = run(tmp_path, "test_order.py::test_mails")
    assert status == 1
    command = next(line.partition("to repeat it: ")[2] for line in output.splitlines() if "to repeat it: " in line)
    assert command.startswith("python -m pytest test_order.py::test_mails --crash-point ")
    point = command.split()[-1]
    status, output = run(tmp_path, "test_order.py::test_mails", "--crash-point", point)
    assert status == 1
    assert f"crash_everywhere[{point}]" in output


def test_test_that_is_wrong_without_a_crash_fails_as_usual(tmp_path: Path) -> None:
    status, output = run(tmp_path, "test_order.py::test_wrong")
    assert status == 1
    assert "assert 'receipt for A-1' == 'something else'" in output
    assert "crash_everywhere[" not in output


@pytest.mark.parametrize(
    "test", ["def test_it(perdure): ...", "async def test_it(): ..."], ids=["not async", "without the app"]
)
def test_mark_on_a_test_that_cannot_be_a_scenario_is_refused(tmp_path: Path, test: str) -> None:
    (tmp_path / "test_other.py").write_text(f"import pytest\n\n@pytest.mark.crash_everywhere\n{test}\n")
    status, output = run(tmp_path, "test_other.py")
    assert status != 0
    assert "must be an async function that takes the fixture 'perdure'" in output
