"""The pytest plugin: `@pytest.mark.replay`, and snapshots that are written on request, as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from tests.support.storages import Database
from tests.testing.stories import told

MODULE = """
import pytest

from perdure import App
from perdure.testing import History, assert_snapshot
from tests.testing.orders import changed, notify, now, order, Order


async def other(given: Order) -> str:
    now()
    await notify("new")
    return ""


@pytest.mark.replay("histories/*.json")
def test_replays():
    pass


@pytest.mark.replay("histories/*.json")
async def test_takes(history):
    assert isinstance(history, History)
    assert history.steps[0] == "kit.reserve"


@pytest.mark.replay("histories/*.json", workflow=changed(other))
def test_differs():
    pass


@pytest.mark.replay("unknown/*.json")
def test_unknown():
    pass


def test_without_a_mark(history):
    pass


@pytest.mark.replay("histories/done.json")
def test_snapshot(history):
    assert_snapshot(history, "snapshots/done.txt")
"""

NO_FILES = """
import pytest


@pytest.mark.replay("nowhere/*.json")
def test_nothing():
    pass
"""


def _pytest(folder: Path, *options: str) -> str:
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "pytest_perdure", "-p", "no:cacheprovider"]
    strict = [
        "--strict-markers",
        "-o",
        "asyncio_mode=auto",
        "-o",
        "addopts=",
        "--rootdir",
        str(folder),
        "-c",
        os.devnull,
    ]
    sources = [Path(perdure.__file__).parents[1], Path(__file__).parents[2]]  # the first may be a copy with a bug
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "--color=no", *plugins, *strict, *options, str(folder)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(map(str, sources))},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
async def project(reference: Database, tmp_path: Path) -> Path:
    """A folder with tests and recorded histories."""
    folder = tmp_path / "project"
    (await told(reference, "completed", "a")).save(folder / "histories" / "done.json")
    (await told(reference, "waiting", "b")).save(folder / "histories" / "open.json")
    unknown = (folder / "histories" / "done.json").read_text().replace('"kit.order"', '"kit.gone"')
    (folder / "unknown").mkdir()
    (folder / "unknown" / "gone.json").write_text(unknown)
    (folder / "test_histories.py").write_text(MODULE)
    return folder


def test_marked_test_is_run_for_each_file(project: Path) -> None:
    shown = _pytest(project)
    for name in ("histories/done.json", "histories/open.json"):
        assert f"test_replays[{name}] PASSED" in shown
        assert f"test_takes[{name}] PASSED" in shown
        assert f"test_differs[{name}] FAILED" in shown
    assert "the history continues with 2:kit.reserve! (ActivityStarted), but the code waits for 2:kit.notify" in shown
    assert "test_unknown[unknown/gone.json] FAILED" in shown
    assert "workflow 'kit.gone' is not defined in this process: import its module" in shown
    assert "does not exist: run pytest --perdure-update-snapshots to write it" in shown
    assert "the fixture `history` is for tests with @pytest.mark.replay: add the mark" in shown
    assert "4 failed, 4 passed, 1 error" in shown


def test_snapshots_are_written_beside_the_test_and_compared_later(project: Path) -> None:
    assert "1 passed" in _pytest(project, "-k", "test_snapshot[", "--perdure-update-snapshots")
    path = project / "snapshots" / "done.txt"
    assert path.read_text().splitlines()[2] == "  kit.charge (3 attempts)"
    assert "1 passed" in _pytest(project, "-k", "test_snapshot[")
    path.write_text(path.read_text().replace("3 attempts", "4 attempts"))
    shown = _pytest(project, "-k", "test_snapshot[")
    assert "-  kit.charge (4 attempts)" in shown
    assert "+  kit.charge (3 attempts)" in shown


def test_mark_without_a_matching_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_histories.py").write_text(NO_FILES)
    shown = _pytest(tmp_path)
    assert f"no file matches 'nowhere/*.json' in {tmp_path}, so this test would check nothing" in shown
    assert "1 error" in shown
    assert "passed" not in shown
