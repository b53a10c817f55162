"""Check that docs/pitfalls.md lists every pitfall with its tests, and that the tests have its mark."""

import re

from tests.docs.marks import ROOT, all_tests, references

PAGE = (ROOT / "docs" / "pitfalls.md").read_text("utf-8")
ROWS: list[tuple[str, str]] = re.findall(r"^\| (\d+) \|(.*)$", PAGE, re.MULTILINE)
NAMED = {int(number): references(text) for number, text in ROWS}


def test_every_number_has_one_row() -> None:
    assert sorted(int(number) for number, _ in ROWS) == list(range(1, 55))


def test_every_pitfall_names_tests_that_exist() -> None:
    assert [number for number, tests in NAMED.items() if not tests] == []
    assert [test for test in references(PAGE) if test not in all_tests()] == []


def test_every_marked_test_is_named_in_the_row_of_its_number() -> None:
    marked = [(test.id, number) for test in all_tests().values() for number in test.marks.get("pitfall", [])]
    assert len(marked) > 20
    assert [(test, number) for test, number in marked if test not in NAMED.get(int(number), [])] == []


def test_every_engine_test_that_is_named_is_marked() -> None:
    for number, tests in NAMED.items():
        for test in tests:
            if test.startswith("tests/engine/"):
                assert number in all_tests()[test].marks.get("pitfall", []), f"{test} is not marked pitfall({number})"
