"""The pytest plugin, as a project uses it: with pytest-asyncio, anyio and xdist, and when a test is wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

WORKFLOWS = """
import asyncio
from datetime import timedelta

from perdure import activity, sleep, workflow

COMPLETED = []


@activity
async def note(name: str) -> str:
    return name


@workflow
async def monthly() -> str:
    await sleep(timedelta(days=30))
    return "a month later"


@workflow
async def race() -> list[str]:
    done = []

    async def add(name: str) -> None:
        done.append(await note(name))

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(add(name))
    return done
"""

USES = """
import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from flows import monthly
from perdure.testing import TestApp

{mark}


async def test_a_month_passes(perdure: TestApp) -> None:
    asyncio.get_running_loop()
    before = perdure.clock.now
    assert await monthly() == "a month later"
    assert perdure.clock.now - before >= timedelta(days=30)


class TestMethods:
    async def test_each_test_has_an_app_of_its_own(self, perdure: TestApp) -> None:
        assert await perdure.runs().count() == 0
        run = await monthly.start()
        assert (await run.info()).workflow == "monthly"


@pytest.mark.perdure(worker_id="me", max_runs=7)
async def test_settings(perdure: TestApp) -> None:
    assert perdure.worker_id == "me"


@pytest.mark.parametrize("number", [1, 2])
async def test_parameters(perdure: TestApp, number: int) -> None:
    assert await monthly() == "a month later"
"""


def run_pytest(folder: Path, *options: str, plugins: tuple[str, ...], ini: str = "") -> str:
    """Run the tests of a folder in a new process; return what it prints."""
    if "pytest_asyncio.plugin" in plugins:
        ini += "\nasyncio_default_fixture_loop_scope = function"
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    (folder / "flows.py").write_text(WORKFLOWS)
    named = [argument for plugin in plugins for argument in ("-p", plugin)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "--color=no", "-p", "pytest_perdure", *named, *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(folder),
            "PYTEST_ADDOPTS": "-p no:cacheprovider --strict-markers -W error",
        },
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.stdout + done.stderr


def counts(output: str) -> dict[str, int]:
    """Return the numbers of passed, failed and erroneous tests."""
    last = output.strip().splitlines()[-1]
    return {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|errors?)", last)}


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_fixture_works_with_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    mark = "pytestmark = pytest.mark.asyncio" if mode == "strict" else ""
    (tmp_path / "test_uses.py").write_text(USES.format(mark=mark))
    output = run_pytest(tmp_path, plugins=("pytest_asyncio.plugin",), ini=f"asyncio_mode = {mode}")
    assert counts(output) == {"passed": 5}, output


def test_fixture_works_with_anyio(tmp_path: Path) -> None:
    mark = "pytestmark = pytest.mark.anyio\n\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'"
    (tmp_path / "test_uses.py").write_text(USES.format(mark=mark))
    output = run_pytest(tmp_path, plugins=("anyio.pytest_plugin",))
    assert counts(output) == {"passed": 5}, output


def test_fixture_works_with_both_and_xdist(tmp_path: Path) -> None:
    (tmp_path / "test_uses.py").write_text(USES.format(mark=""))
    plugins = ("anyio.pytest_plugin", "pytest_asyncio.plugin", "xdist.plugin")
    output = run_pytest(tmp_path, "-n", "2", plugins=plugins, ini="asyncio_mode = auto")
    assert counts(output) == {"passed": 5}, output


ON_DATABASE = """
async def test_database(perdure):
    from flows import monthly
    assert perdure.dialect() == "sqlite"
    assert await monthly() == "a month later"
"""


@pytest.mark.parametrize("way", ["option", "ini"])
def test_database_of_the_fixture_can_be_chosen(tmp_path: Path, way: str) -> None:
    (tmp_path / "test_uses.py").write_text(ON_DATABASE)
    url = f"sqlite:///{tmp_path / 'chosen.db'}"
    options = [f"--perdure-database={url}"] if way == "option" else []
    ini = "asyncio_mode = auto" + ("" if way == "option" else f"\nperdure_database = {url}")
    output = run_pytest(tmp_path, *options, plugins=("pytest_asyncio.plugin",), ini=ini)
    assert counts(output) == {"passed": 1}, output


WRONG = """
import pytest
from perdure import wait_event, workflow
from flows import monthly


@workflow
async def for_ever() -> None:
    await wait_event("never")


def test_plain(perdure):
    pass


@pytest.mark.perdure(stall_timeout=0.2)
async def test_stalls(perdure):
    await for_ever()


async def test_fails(perdure):
    assert await monthly() == "something else"


@pytest.mark.perdure(max_runs=0)
async def test_wrong_setting(perdure):
    pass
"""


def test_wrong_tests_fail_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(WRONG)
    output = run_pytest(tmp_path, plugins=("pytest_asyncio.plugin",), ini="asyncio_mode = auto")
    assert counts(output) == {"failed": 2, "errors": 2}, output
    assert "the fixture `perdure` is for async tests: use `async def`" in output
    assert "StalledError: run " in output
    assert "it waits for event 'never' without a timeout" in output
    assert "assert 'a month later' == 'something else'" in output
    assert "max_runs" in output


ORDERS = """
import pytest
from flows import race
from perdure.testing import TestApp

SEEN = set()


@pytest.mark.any_order(runs=20)
async def test_orders(perdure):
    done = await race()
    assert sorted(done) == ["a", "b", "c"]
    SEEN.add(tuple(done))


async def test_several_orders_were_seen():
    assert len(SEEN) >= 4


@pytest.mark.any_order(runs=20)
async def test_own_app():
    async with TestApp():
        assert (await race())[0] != "c"
"""


def test_any_order_shuffles_completions_and_prints_how_to_repeat_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(ORDERS)
    arguments: dict[str, object] = {"plugins": ("pytest_asyncio.plugin",), "ini": "asyncio_mode = auto"}
    output = run_pytest(tmp_path, **arguments)  # type: ignore[arg-type]
    found = counts(output)
    assert found["passed"] + found["failed"] == 41
    assert 2 <= found["failed"] < 20, output
    assert "test_several_orders_were_seen PASSED" in output
    commands = re.findall(r"^pytest '?(test_orders.py::test_own_app\[order\d+\])'?$", output, re.MULTILINE)
    assert len(commands) == found["failed"]
    for _ in range(2):
        assert counts(run_pytest(tmp_path, commands[0], **arguments)) == {"failed": 1}  # type: ignore[arg-type]


UNUSED = """
import sys


def test_nothing_is_imported():
    assert not [name for name in sys.modules if name.split(".")[0] in ("perdure", "msgspec")]
"""


def test_tests_that_do_not_use_perdure_do_not_import_it(tmp_path: Path) -> None:
    (tmp_path / "test_unused.py").write_text(UNUSED)
    output = run_pytest(tmp_path, plugins=("pytest_asyncio.plugin",))
    assert counts(output) == {"passed": 1}, output
