"""The list of planted bugs is up to date, and some are inserted here; `make planted` inserts all."""

import ast
import re
from pathlib import Path

import pytest

from tests.planted.bugs import ROOT, Bug, all_bugs
from tests.planted.detection import hunt

BUGS = all_bugs()
QUICK = ["a fence that ignores the token", "a timer fires early", "undos run in the order of the steps"]


def test_list_has_40_distinct_bugs() -> None:
    assert len({bug.what for bug in BUGS}) == len(BUGS) >= 40


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_planted_bug_applies_and_names_existing_tests(bug: Bug) -> None:
    assert bug.count == 1, f"{bug.file} has the text to change {bug.count} times"
    assert bug.old != bug.new
    if bug.file.endswith(".py"):
        ast.parse(bug.changed())
    for test in bug.caught_by:
        path, _, name = test.partition("::")
        text = _text(ROOT / path)
        assert not name or re.search(rf"def {name.partition('[')[0]}\(", text), f"there is no {test}"


def _text(path: Path) -> str:
    """What a test file has, with the modules of the conformance suite that it runs."""
    if path.is_dir():
        return ""
    if path.parent.name != "conformance":
        return path.read_text()
    suite = ROOT / "src/perdure/testing/conformance"
    return "\n".join(each.read_text() for each in [path, *suite.rglob(path.name.removeprefix("test_"))])


@pytest.mark.parametrize("what", QUICK)
async def test_planted_bug_is_detected(what: str) -> None:
    (bug,) = [bug for bug in BUGS if bug.what == what]
    assert (await hunt(bug)).caught_by is not None
