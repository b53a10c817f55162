"""Check that docs/guarantees.md names existing tests, and every test that is marked as the test of something on it."""

import re
from collections.abc import Sequence

import pytest

import perdure
from tests.chaos.rigs import RIGS
from tests.docs.marks import ROOT, all_tests, marks_in, references

PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
AREAS = "run|compose|time|events|channels|groups|long life|saga|transactions|limits|versions|observe".split("|")
TOPICS = (
    "event loop of the body|order|same id twice|errors|events|cancel|children|retry|in_transaction|"
    "SyncClient|connection|background tasks"
).split("|")


def named_by_number(page: str) -> dict[int | str, list[str]]:
    """Return the tests that the section of each numbered guarantee names."""
    sections = re.findall(r"^### (\d+)\. .*\n((?:(?!##).*\n)*)", page, re.MULTILINE)
    return {int(number): references(text) for number, text in sections}


def named_in_table(page: str, header: str) -> dict[int | str, list[str]]:
    """Return the tests of each row of the table that starts with this header, by the first cell.

    A row whose first cell is empty belongs to the row above.
    """
    lines = page.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {header} |"))
    named: dict[int | str, list[str]] = {}
    first = ""
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first = re.sub(r"\W+$|^\W+", "", line.split("|")[1]) or first
        named.setdefault(first, []).extend(references(line))
    return named


NAMED = {
    "guarantee": named_by_number(PAGE),
    "call": named_in_table(PAGE, "area | call"),
    "behaviour": named_in_table(PAGE, "topic"),
}
WANTED: dict[str, Sequence[int | str]] = {"guarantee": list(range(1, 11)), "call": AREAS, "behaviour": TOPICS}


def test_every_named_test_exists() -> None:
    named = references(PAGE)
    assert len(named) > 100
    assert [test for test in named if test not in all_tests()] == []


@pytest.mark.parametrize("mark", WANTED)
def test_every_guarantee_area_and_topic_names_a_marked_test(mark: str) -> None:
    assert set(NAMED[mark]) == set(WANTED[mark])
    for which in WANTED[mark]:
        marked = [test for test in NAMED[mark][which] if which in all_tests()[test].marks.get(mark, [])]
        assert marked, f"the page names no test that is marked {mark}({which!r})"


@pytest.mark.parametrize("mark", WANTED)
def test_every_marked_test_is_named_where_its_mark_says(mark: str) -> None:
    for test in all_tests().values():
        for which in test.marks.get(mark, []):
            assert test.id in NAMED[mark].get(which, []), f"{test.id} is marked {mark}({which!r})"


@pytest.mark.parametrize("mark", WANTED)
def test_every_engine_test_that_is_named_is_marked(mark: str) -> None:
    for which, tests in NAMED[mark].items():
        for test in tests:
            if test.startswith("tests/engine/"):
                assert which in all_tests()[test].marks.get(mark, []), f"{test} is not marked {mark}({which!r})"


def test_marks_and_names_are_read_from_source_and_page() -> None:
    source = '@pytest.mark.guarantee(3)\n@pytest.mark.call("run")\nasync def test_it() -> None: ...\n'
    (test,) = marks_in(source, "tests/a.py")
    assert (test.id, test.marks) == ("tests/a.py::test_it", {"guarantee": [3], "call": ["run"]})
    page = "### 3. It\n\nText\n\n`tests/a.py::test_it`\n\n### Other\n\n`tests/a.py::test_other`\n"
    assert named_by_number(page) == {3: ["tests/a.py::test_it"]}
    rows = "| `f()` | `tests/a.py::test_f` |\n|  | `tests/a.py::test_g` |\n"
    table = f"| topic | x |\n|---|---|\n{rows}\n`tests/a.py::test_h`"
    assert named_in_table(table, "topic") == {"f": ["tests/a.py::test_f", "tests/a.py::test_g"]}


def test_every_invariant_and_every_rig_names_its_tests() -> None:
    rows = dict(re.findall(r"^\| (I\d+|[a-z-]+) \|(.*)$", PAGE, re.MULTILINE))
    for name in [f"I{number}" for number in range(1, 15)] + list(RIGS):
        assert "::test_" in rows.get(name, ""), name


def test_every_call_is_documented() -> None:
    page = (ROOT / "docs" / "guide.md").read_text("utf-8")
    for name in perdure.__all__:
        if name.islower():
            assert re.search(rf"`[^`\n]*\b{name}\b|^from perdure import .*\b{name}\b", page, re.MULTILINE), name
