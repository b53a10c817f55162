"""The documentation: every code block runs and prints the documented output, links resolve, examples work."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\nIt prints:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
_ANCHOR = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

BLOCKS = [
    pytest.param(code, printed, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, (code, printed) in enumerate(_BLOCK.findall(page.read_text("utf-8")), 1)
]


@pytest.mark.parametrize(("code", "printed"), BLOCKS)
def test_code_block_runs_and_prints_the_documented_output(code: str, printed: str, tmp_path: Path) -> None:
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
def test_relative_links_resolve(page: Path) -> None:
    for link in _LINK.findall(page.read_text("utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_anchors_are_headings_of_their_page(page: Path) -> None:
    for link, anchor in _ANCHOR.findall(page.read_text("utf-8")):
        assert anchor in _anchors(page.parent / link if link else page), f"{link}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings on GitHub."""
    headings = _HEADING.findall(_CODE.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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


def test_demo_completes_each_order_once_and_compensates_a_failed_one(tmp_path: Path) -> None:
    shown = _example("order_demo", tmp_path)
    assert "the worker is dead" in shown
    assert "30 of 30 orders, each completed exactly once" in shown
    assert "30 of 30 orders have every step recorded exactly once" in shown
    _, _, rollback = shown.partition("refused\n")
    lines = [line.strip() for line in rollback.splitlines()]
    assert sorted(lines[:2]) == ["refunded 99.00", "unpacked"]
    assert lines[2].startswith("failed unknown address")


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("onboarding", "We miss you -> bob@example.org"),
        ("job_workers", "12 pictures, each processed once"),
        ("approval", "pencil was not decided in time"),
        ("saga", "failed: no van is large enough; all steps are compensated"),
        ("nightly", "Bonn: 40 orders; Leipzig: 70 orders\n0 runs ended more than 30 days ago"),
        ("agent", "I found a train, but was not allowed to book it."),
        ("transfer", "another worker resumed ann 50, bob 50, together 100; 10 orders"),
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
