"""The search language."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.views.search import Search, SearchError, parse

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("state:failed", {"status": "failed"}),
        ("STATUS:Waiting", {"status": "waiting"}),
        ("state:waiting_for_timer", {"status": "waiting_for_timer"}),
        ('workflow:"my order"  stuck:yes', {"workflow": "my order", "stuck": True}),
        ("started:<90m started:>1d", {"after": NOW - timedelta(minutes=90), "before": NOW - timedelta(days=1)}),
        ("started:>2026-02-01", {"after": datetime(2026, 2, 1, tzinfo=UTC)}),
        ("started:<2026-02-01T10:00+02:00", {"before": datetime(2026, 2, 1, 8, tzinfo=UTC)}),
        ("A-1", {"id": "A-1"}),
        ('"state:odd id"', {"id": "state:odd id"}),
        ("id:a:b", {"id": "a:b"}),
        (
            'workflow:o input.a.b:7 input.c:x input.d:"7" input.e:true input.f:null input.g:1e400x',
            {"workflow": "o", "where": {"a.b": 7, "c": "x", "d": "7", "e": True, "f": None, "g": "1e400x"}},
        ),
    ],
)
def test_search_is_parsed(text: str, expected: dict[str, Any]) -> None:
    assert parse(text, NOW) == Search(**expected)


@pytest.mark.parametrize(
    "text",
    [
        "state:odd",
        "colour:red",
        "stuck:no",
        "started:1h",
        "state:",
        "state:failed state:running",
        "A-1 B-2",
        "A-1 state:failed",
        "input.a:1",
        "started:>1h input.a:1",
        "workflow:o input.a..b:1",
        "started:<yesterday",
        'workflow:"\\x"',
    ],
)
def test_mistake_is_explained(text: str) -> None:
    with pytest.raises(SearchError, match=r".{20}"):
        parse(text, NOW)
