"""Searches: an id, or a filter as the command line has it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.inspection.filters import RunFilter
from perdure.views.search import HELP, FilterError, Search, parse

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("state:failed", {"status": "failed"}),
        ("state:waiting", {"status": "waiting"}),
        ("status:waiting_for_timer", {"status": "waiting_for_timer"}),
        ('workflow:"my order"  stuck:yes', {"workflow": "my order", "stuck": True}),
        ("started:<90m", {"started_after": NOW - timedelta(minutes=90)}),
        ("started:>2026-02-01", {"started_after": datetime(2026, 2, 1, tzinfo=UTC)}),
        ('workflow:o input.a.b:7 input.d:"7"', {"workflow": "o", "where": {"a.b": 7, "d": "7"}}),
    ],
)
def test_terms_are_a_filter(text: str, expected: dict[str, Any]) -> None:
    assert parse(text, NOW) == Search(filter=RunFilter(**expected))


@pytest.mark.parametrize(
    ("text", "id"), [("A-1", "A-1"), (" A-1 ", "A-1"), ('"state:odd id"', "state:odd id"), ("id:a:b", "a:b")]
)
def test_single_word_is_an_id(text: str, id: str) -> None:
    assert parse(text, NOW) == Search(id)


@pytest.mark.parametrize(
    "text", ["state:odd", "colour:red", "state:", "A-1 B-2", "A-1 state:failed", "started:<yesterday", 'id:"\\x"']
)
def test_mistake_is_explained(text: str) -> None:
    with pytest.raises(FilterError, match=r".{20}"):
        parse(text, NOW)


def test_examples_of_the_help_are_valid() -> None:
    assert [parse(example, NOW) for example, _ in HELP]
