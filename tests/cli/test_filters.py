"""Filters as text."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from perdure.cli.filtering import Status
from perdure.inspection import FilterError, RunFilter, parse_filter
from perdure.model.states import WorkflowStatus

NOW = datetime(2026, 11, 18, 12, tzinfo=timezone(timedelta(hours=1)))
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", RunFilter()),
        ("state:failed", RunFilter(status=WorkflowStatus.FAILED)),
        ("status:waiting_for_timer", RunFilter(status=WorkflowStatus.WAITING_FOR_TIMER)),
        ("workflow:order stuck:yes", RunFilter(workflow="order", stuck=True)),
        ('workflow:"my order"', RunFilter(workflow="my order")),
        ("workflow:shop:order", RunFilter(workflow="shop:order")),
        ("input.order_id:A-1", RunFilter(where={"order_id": "A-1"})),
        (
            'input.a.b:3 input.c:"3" input.d:true input.e:null',
            RunFilter(where={"a.b": 3, "c": "3", "d": True, "e": None}),
        ),
        ('input.a:NaN input.b:[1] input.c:"x \\" y"', RunFilter(where={"a": "NaN", "b": "[1]", "c": 'x " y'})),
        ("started:<1h", RunFilter(started_after=NOW - HOUR)),
        ("started:>1h", RunFilter(started_before=NOW - HOUR)),
        ("started:>7d started:<2w", RunFilter(started_before=NOW - 168 * HOUR, started_after=NOW - 336 * HOUR)),
        ("started:>2026-11-01", RunFilter(started_after=datetime(2026, 11, 1, tzinfo=NOW.tzinfo))),
        ("started:<2026-11-01T09:00Z", RunFilter(started_before=datetime(2026, 11, 1, 9, tzinfo=UTC))),
    ],
)
def test_filter_is_read(text: str, expected: RunFilter) -> None:
    assert parse_filter(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("order", "'order' is no filter: write state:"),
        ("state:failed state:running", "state: is given twice"),
        ("state:failed status:running", "state: is given twice"),
        ("state:broken", "state:broken is unknown: use one of running"),
        ("stuck:no", "write stuck:yes, or leave it out"),
        ("colour:red", "colour: is no filter"),
        ("input:A-1", "input: is no filter"),
        ("workflow:>order", "which only started: can"),
        ("started:1h", "has no direction: write started:<1h or started:>1h"),
        ("started:<soon", "'soon' is no time"),
        ("started:<99999999999999999w", "too long"),
        ("started:<99999999d", "too long"),
        ('workflow:"order', "is no filter"),
        ('workflow:"\\x"', "is no valid text"),
    ],
)
def test_filter_that_cannot_be_read_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(FilterError) as error:
        parse_filter(text, NOW)
    assert message in str(error.value)


def test_option_for_the_status_has_all_statuses_and_any_wait() -> None:
    assert {each.meaning for each in Status} == {*WorkflowStatus, "waiting"}
