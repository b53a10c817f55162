"""The documentation: every code block runs and prints the documented output."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli.main import build
from tests.docs.forks import Forks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = sorted((ROOT / "docs" / "tutorial").glob("*.md"))  # test_tutorial.py runs its blocks in their order
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\nIt prints:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)

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
_PLAIN = re.compile(r"^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SKIPPED = re.compile(r"^```\w+\n.*?^```$\n", re.DOTALL | re.MULTILINE)


def _commands(page: Path) -> list[tuple[str, str]]:
    """Return the commands in blocks without a language, as program and arguments."""
    text = _SKIPPED.sub("", page.read_text("utf-8"))
    lines = [line for block in _PLAIN.findall(text) for line in block.splitlines()]
    return [(found[1], found[2]) for line in lines if (found := re.match(r"(perdure|make|pip) (?!dev:)(.+)", line))]


_ANY = re.compile(r"^( *(?:```+|~~~+)) *(\S*)[^\n]*\n(.*?)^ *(?:```+|~~~+)$", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"(?:#|--) \S+\.\w+\n")
# The tests of these pages play their `console` blocks, and send the requests of `http` blocks.
PLAYED = ("docs/tutorial/", "docs/errors/", "docs/cli.md", "docs/troubleshooting.md", "docs/deployment/migrations.md")
# Files and URLs of other programs, a question to a person, and commands that install or serve something.
NOT_EXECUTED = {
    "docs/cli.md": ["$ perdure dev shop:app"],
    "docs/errors/cli.declined.md": ["$ perdure cancel --filter 'workflow:order state:waiting'"],
    "docs/howto/high-availability.md": [
        "postgresql://app@db1:5432,db2:5432,db3:5432/app?target_session_attrs=read-write&connect_timeout=2&command_timeout=30",
        "bootstrap:",
        "mysql://app@db1:3306,db2:3306,db3:3306/app?connect_timeout=2&read_timeout=15",
        "[mariadb]",
        "#!/bin/sh",
    ],
    "docs/howto/http.md": ["uvicorn orders:api"],
    "docs/tutorial/09-postgresql.md": [
        "CREATE DATABASE shop;",
        "docker run --rm -d -p 5432:5432 -e POSTGRES_DB=shop -e POSTGRES_HOST_AUTH_METHOD=trust postgres",
    ],
}


def _not_executed(name: str, text: str) -> list[str]:
    """Return the first lines of the blocks of a page that no test executes or reads."""
    printed = {found[2] for found in _BLOCK.finditer(text)}
    return [
        block.partition("\n")[0]
        for fence, language, block in _ANY.findall(text)
        if fence != "```"
        or not (
            language == "python"
            or (language == "text" and block in printed)
            or (language in ("console", "http", "json") and name.startswith(PLAYED))
            or (language in ("py", "toml", "yaml", "ini", "sql") and _NAMED.match(block))
            or (not language and re.search(r"^(?:perdure|make|pip) (?!dev:)", block, re.MULTILINE))
        )
    ]


PAGES_WITH_COMMANDS = [page for page in (*PAGES, ROOT / "CONTRIBUTING.md") if _commands(page)]
PAGES_WITH_TESTS = [page for page in PAGES if "```python\n# test_" in page.read_text("utf-8") and page not in TUTORIAL]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


@pytest.mark.parametrize(("page", "code", "printed"), BLOCKS)
def test_code_block_runs_and_prints_the_documented_output(
    page: Path, code: str, printed: str, tmp_path: Path, forks: Forks
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    _write_files(page, folder)
    done = forks.run(code, folder, tmp_path)
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


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: page.name)
def test_commands_that_no_test_executes_exist(page: Path) -> None:
    """An installation, a server or an hour of chaos is not executed; its program, target, extra and options exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for program, line in _commands(page):
        arguments = shlex.split(line, comments=True)
        if program == "perdure":
            build().parse_args(arguments, print_error=False, exit_on_error=False)  # raises if it is wrong
        elif program == "make":
            assert arguments[0] in targets, line
        else:
            named = [each for found in re.findall(r"\[(.+)\]", arguments[-1]) for each in found.split(",")]
            assert set(named) <= set(extras), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_executed(page: Path) -> None:
    name = page.relative_to(ROOT).as_posix()
    assert _not_executed(name, page.read_text("utf-8")) == NOT_EXECUTED.get(name, [])


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("docs/guide.md", "```console\n$ perdure runs\n```"),
        ("docs/guide.md", "```\n$ perdure runs\n```"),
        ("docs/guide.md", "```bash\nperdure runs\n```"),
        ("docs/guide.md", "~~~text\nreceipt\n~~~"),
        ("docs/guide.md", "~~~python\nprint(1)\n~~~"),
        ("docs/guide.md", "- item\n\n  ```python\n  print(1)\n  ```"),
        ("docs/guide.md", "- item\n\n  ```toml\n  [tool.perdure]\n  ```"),
        ("docs/guide.md", "```python\nprint(1)\n```\n\nIt is:\n\n```text\n1\n```"),
    ],
)
def test_block_that_no_test_executes_is_found(name: str, block: str) -> None:
    assert len(_not_executed(name, f"# Title\n\n{block}\n")) == 1


def _write_files(page: Path, folder: Path) -> list[str]:
    """Write the blocks of a page that begin with the name of a file, such as `# shop.py`, and return these names."""
    files = _FILE.findall(page.read_text("utf-8"))
    for name, text in files:
        (folder / name).write_text(text)
    return [name for name, _ in files]


def test_every_extra_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    part = readme[readme.index("## Install") : readme.index("## Documentation")]
    assert [each for each in extras if not re.search(rf"\b{each}\b", part)] == []


def test_the_readme_has_blocks() -> None:
    assert any("README" in str(block.id) for block in BLOCKS)
