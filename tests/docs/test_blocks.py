"""The documentation: every code block runs and prints the documented output, and links resolve."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = sorted((ROOT / "docs" / "tutorial").glob("*.md"))  # test_tutorial.py runs its blocks in their order
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\nIt prints:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
_ANCHOR = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

_FILE = re.compile(r"^```\w+\n# (\S+\.(?:py|toml))\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PASSED = re.compile(r"^(test_\w+\.py) ([.]+) ", re.MULTILINE)
PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "pytest_perdure", "-p", "no:cacheprovider")

BLOCKS = [
    pytest.param(page, code, printed, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    if page not in TUTORIAL
    for number, (code, printed) in enumerate(_BLOCK.findall(page.read_text("utf-8")), 1)
    if not code.startswith("# test_")
]
PAGES_WITH_TESTS = [page for page in PAGES if "```python\n# test_" in page.read_text("utf-8") and page not in TUTORIAL]


@pytest.mark.parametrize(("page", "code", "printed"), BLOCKS)
def test_code_block_runs_and_prints_the_documented_output(page: Path, code: str, printed: str, tmp_path: Path) -> None:
    _write_files(page, tmp_path)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    if printed:
        assert done.stdout == printed


@pytest.mark.parametrize("page", PAGES_WITH_TESTS, ids=lambda page: page.name)
def test_blocks_with_tests_pass(page: Path, tmp_path: Path) -> None:
    modules = [name for name in _write_files(page, tmp_path) if name.startswith("test_")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", *PLUGINS, *modules],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # the reader may have no other plugin
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name, _ in _PASSED.findall(done.stdout)] == modules


def _write_files(page: Path, folder: Path) -> list[str]:
    """Write the blocks of a page that begin with the name of a file, such as `# shop.py`, and return these names."""
    files = _FILE.findall(page.read_text("utf-8"))
    for name, text in files:
        (folder / name).write_text(text)
    return [name for name, _ in files]


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
