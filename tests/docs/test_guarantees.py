"""Check that docs/guarantees.md names existing tests, and every test of a call (`row`) or a behaviour (`meaning`)."""

import re
from pathlib import Path

import perdure
from tests.chaos.rigs import RIGS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
NAMED: list[tuple[str, str]] = re.findall(r"`((?:tests|src)/[\w/]+\.py)::(\w+)`", PAGE)
ROWS = "run compose time events channels groups long_life saga transactions limits versions observe"
MEANINGS = "own_loop order same_id_twice errors events cancel children retry in_transaction connection"
_DEFINED = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def test_every_named_test_exists() -> None:
    assert len(NAMED) > 100
    for path, name in NAMED:
        assert name in _DEFINED.findall((ROOT / path).read_text("utf-8")), f"{path}::{name}"


def test_every_call_behaviour_and_numbered_guarantee_names_a_test() -> None:
    names = [name for _, name in NAMED]
    wanted = [f"test_row_{row}_" for row in ROWS.split()] + [f"test_meaning_{which}_" for which in MEANINGS.split()]
    wanted += [f"test_p{number}_" for number in range(1, 11)]
    for prefix in wanted:
        assert any(name.startswith(prefix) for name in names), prefix


def test_every_invariant_and_every_rig_names_its_tests() -> None:
    rows = dict(re.findall(r"^\| (I\d+|[a-z-]+) \|(.*)$", PAGE, re.MULTILINE))
    for name in [f"I{number}" for number in range(1, 15)] + list(RIGS):
        assert "::test_" in rows.get(name, ""), name


def test_every_test_of_a_call_or_behaviour_is_on_the_page() -> None:
    names = {name for _, name in NAMED}
    for path in sorted((ROOT / "tests" / "engine").rglob("test_*.py")):
        for name in _DEFINED.findall(path.read_text("utf-8")):
            assert name in names or not name.startswith(("test_row_", "test_meaning_")), f"{path.name}::{name}"


def test_every_call_is_documented() -> None:
    page = (ROOT / "docs" / "guide.md").read_text("utf-8")
    for name in perdure.__all__:
        if name.islower():
            assert re.search(rf"`[^`\n]*\b{name}\b|^from perdure import .*\b{name}\b", page, re.MULTILINE), name
