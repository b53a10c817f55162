"""The examples work: their programs print what they should, and the example project passes its own tests."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.testing import TestApp
from tests.cli.programs import runs_page
from tests.docs.marks import ROOT
from tests.docs.test_blocks import PLUGINS
from tests.support.programs import load_anew, no_other_program

PROJECT = ROOT / "examples" / "testing"


@pytest.fixture
def _as_a_program() -> Iterator[None]:
    """Let an example define activities of any name, as if no other program were in this process."""
    with no_other_program():
        yield


@pytest.mark.usefixtures("_as_a_program")
@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("onboarding", "We miss you -> bob@example.org"),
        ("job_workers", "12 pictures, each processed once"),
        ("approval", "pencil was not decided in time"),
        ("saga", "failed: no van is large enough; all steps are compensated"),
        ("nightly", "Bonn: 40 orders; Leipzig: 70 orders\n0 runs ended more than 30 days ago"),
        ("agent", "I found a train, but was not allowed to book it."),
    ],
)
async def test_example_prints_its_result(
    example: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load_anew(f"examples.{example}")
    monkeypatch.setattr(module, "App", TestApp)
    await module.main("sqlite:///:memory:")
    assert said in capsys.readouterr().out


def test_example_runs_as_a_program(tmp_path: Path) -> None:
    assert "pencil was not decided in time" in run_example("approval", tmp_path)


def test_transfer_is_resumed_by_another_worker(tmp_path: Path) -> None:
    shown = run_example("transfer", tmp_path)
    assert "another worker resumed ann 50, bob 50, together 100; 10 orders" in shown


@pytest.mark.parametrize("shop", ["flask_shop", "django_shop"])
def test_web_shop_starts_runs_that_its_worker_executes(shop: str, tmp_path: Path) -> None:
    assert run_example(shop, tmp_path).splitlines() == [
        "placed: order-A-1",
        "placed: order-A-1",
        "approved: order-A-1",
        "receipt: 9.50 paid for A-1, parcel of A-1",
        "status: completed",
        "an order that does not exist: 404",
    ]


async def test_demo_completes_each_order_once_and_compensates_a_failed_one(tmp_path: Path) -> None:
    shown = run_example("order_demo", tmp_path)
    assert "the worker is dead" in shown
    assert "30 of 30 orders, each completed exactly once" in shown
    assert "30 of 30 orders have every step recorded exactly once" in shown
    _, _, rollback = shown.partition("refused\n")
    lines = [line.strip() for line in rollback.splitlines()]
    assert sorted(lines[:2]) == ["refunded 99.00", "unpacked"]
    assert lines[2].startswith("failed unknown address")
    page = await runs_page(lines[-1].removeprefix("look at the runs"), ROOT)  # in the folder of `make demo`
    assert "order-A-nowhere" in page


def test_storage_demo_shows_that_a_stale_write_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "storage_demo.py"), f"sqlite:///{tmp_path}/demo.db"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "refused (storage.lease_lost)" in done.stdout
    assert done.stdout.count("order-A-1") == 1
    assert '{"parcel": "B"}' in done.stdout
    assert "completed" in done.stdout.splitlines()[-1]


def run_example(name: str, folder: Path) -> str:
    """Run the program of an example and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"examples.{name}", f"sqlite:///{folder}/example.db"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_example_project_passes_its_tests(tmp_path: Path) -> None:
    shutil.copytree(PROJECT, tmp_path, dirs_exist_ok=True)
    code, shown = run_project(tmp_path)
    assert code == 0, shown
    assert int(re.findall(r"(\d+) passed", shown)[0]) >= 21


@pytest.mark.parametrize(
    ("line", "changed", "failing"),
    [
        ("REVIEW_AFTER = timedelta(days=30)", "REVIEW_AFTER = timedelta(days=3)", "test_review_is_requested_after"),
        ("    await reserve(order_id)\n", "", "test_recorded_orders_continue_with_this_code"),
    ],
    ids=["time", "step"],
)
def test_example_project_notices_a_mistake(line: str, changed: str, failing: str, tmp_path: Path) -> None:
    change(tmp_path, line, changed)
    code, shown = run_project(tmp_path, "-m", "not crash_everywhere")
    assert code == 1, shown
    assert f"FAILED test_shop.py::{failing}" in shown


def change(folder: Path, line: str, changed: str) -> None:
    """Copy the example project, and change a line."""
    shutil.copytree(PROJECT, folder, dirs_exist_ok=True)
    shop = folder / "shop.py"
    text = shop.read_text("utf-8")
    assert line in text
    shop.write_text(text.replace(line, changed), "utf-8")


def run_project(folder: Path, *options: str) -> tuple[int, str]:
    """Run the tests of the project in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *PLUGINS, *options],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # the reader may have no other plugin
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
