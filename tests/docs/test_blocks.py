"""Every block of code in the documentation runs, and prints what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\nIt prints:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")

BLOCKS = [
    pytest.param(code, printed, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, (code, printed) in enumerate(_BLOCK.findall(page.read_text("utf-8")), 1)
]


@pytest.mark.parametrize(("code", "printed"), BLOCKS)
def test_a_block_runs_and_prints_what_it_says(code: str, printed: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if printed:
        assert done.stdout == printed


def test_the_readme_has_blocks() -> None:
    assert any("README" in str(block.id) for block in BLOCKS)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text("utf-8")):
        assert (page.parent / link).exists(), link


def test_make_demo_storage_shows_the_stale_write_refused(tmp_path: Path) -> None:
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


def test_make_demo_shows_every_order_done_once_and_a_failed_one_undone(tmp_path: Path) -> None:
    shown = _example("order_demo", tmp_path)
    assert "the worker is dead" in shown
    assert "30 of 30 orders, each finished exactly once" in shown
    assert "30 of 30 orders have every step recorded exactly once" in shown
    _, _, undone = shown.partition("refused\n")
    story = [line.strip() for line in undone.splitlines()]
    assert sorted(story[:2]) == ["refunded 99.00", "unpacked"]
    assert story[2].startswith("failed there is no such address")


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("onboarding", "We miss you -> bob@example.org"),
        ("job_workers", "12 pictures, each made small once"),
        ("approval", "pencil was not decided in time"),
        ("saga", "failed: no van is large enough; nothing is left of it"),
        ("nightly", "Bonn: 40 orders; Leipzig: 70 orders\n0 runs ended over a month ago"),
        ("agent", "I found a train, but was not allowed to book it."),
        ("transfer", "another worker went on ann 50, bob 50, together 100; 10 orders"),
    ],
)
def test_examples_run(example: str, said: str, tmp_path: Path) -> None:
    assert said in _example(example, tmp_path)


def _example(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"examples.{name}", f"sqlite:///{folder}/example.db"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
