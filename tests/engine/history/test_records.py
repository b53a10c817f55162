"""Rows of a history: every record survives encoding and parsing, and rows of earlier versions are still read."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.engine.history import ids, records
from perdure.engine.history.codec import encode
from perdure.engine.history.messages import Message
from perdure.engine.history.records import (
    AttemptFailed,
    Compensated,
    Completed,
    Deadline,
    Expired,
    Failed,
    ForeignRecord,
    MessageReceived,
    Parent,
    PauseEnded,
    Record,
    RunCancelled,
    RunFailed,
    Started,
    Taken,
    TimerFired,
    Until,
    WaitTimedOut,
    record_of,
    row_of,
)
from perdure.model.records import HistoryEvent

NAMES = st.text(min_size=1, max_size=20)  # any name that a user may choose: with `#`, `!`, `@`, `~` and `:`
PATHS = st.from_regex(r"[1-9][0-9]?(\.[1-9][0-9]?){0,3}", fullmatch=True)
STEPS = st.builds(ids.step, PATHS, NAMES)
WAITS = st.builds(ids.step, PATHS, st.sampled_from(["wait_event", "receive"]) | NAMES.map("end.{}".format))
NUMBERS = st.integers(1, 500)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TEXTS = JSON.map(encode)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
FAILURES = st.fixed_dictionaries({"error_type": NAMES, "error_message": st.text(max_size=20), "stack_trace": NAMES})
CALLS = st.none() | st.binary(min_size=17, max_size=17)
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))

ALL: dict[type[Record], st.SearchStrategy[Record]] = {
    Completed: st.builds(Completed, STEPS, TEXTS, CALLS),
    Failed: st.builds(Failed, STEPS, FAILURES, CALLS),
    Started: st.builds(Started, STEPS, OBJECTS.map(encode), CALLS),
    AttemptFailed: st.builds(AttemptFailed, STEPS, NUMBERS, FAILURES, st.none() | st.floats(0, 1e6), CALLS),
    PauseEnded: st.builds(PauseEnded, STEPS, NUMBERS),
    TimerFired: st.builds(TimerFired, st.builds(ids.step, PATHS, st.just(ids.TIMER))),
    MessageReceived: st.builds(MessageReceived, WAITS, OBJECTS, st.none(), st.just(1), st.integers(0, 1))
    | st.builds(MessageReceived, WAITS, st.none(), st.binary(min_size=1), st.just(1), st.integers(0, 1)),
    WaitTimedOut: st.builds(WaitTimedOut, WAITS, st.just(1), st.integers(0, 1), FAILURES),
    Taken: st.builds(Taken, PATHS, st.dictionaries(PATHS, JSON, min_size=1, max_size=3), st.none())
    | st.builds(Taken, PATHS, st.dictionaries(PATHS, JSON, max_size=3), TEXTS, st.booleans()),
    Deadline: st.builds(Deadline, st.timedeltas(timedelta(seconds=1), timedelta(days=9999))),
    Expired: st.just(Expired()),
    Until: st.builds(Until, WAITS, TIMES),
    Parent: st.builds(Parent, NAMES, NAMES),
    Compensated: st.builds(Compensated, STEPS, NAMES, st.none() | NUMBERS, st.none() | FAILURES),
    RunFailed: st.builds(RunFailed, FAILURES),
    RunCancelled: st.builds(RunCancelled, st.text(max_size=20)),
}


def test_every_kind_of_record_is_tried() -> None:
    defined = {each for each in vars(records).values() if isinstance(each, type) and issubclass(each, Record)}
    assert defined - {Record, records.RunRecord, ForeignRecord} == set(ALL)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_record_survives_encoding_and_parsing(kind: type[Record]) -> None:
    @settings(max_examples=40)
    @given(ALL[kind])
    def check(record: Record) -> None:
        if isinstance(record, MessageReceived | WaitTimedOut) and record.step.endswith("@"):
            return  # the name of a workflow may end like that; then only the engine's own ids are exact
        row = row_of("run-1", record)
        assert record_of(row) == record
        assert row_of("run-1", record_of(row)) == row
        if not row.activity_id.startswith(ids.OWN) and not isinstance(record, RunFailed | RunCancelled):
            assert record_of(row).row_id == record.row_id

    check()


@given(STEPS.filter(lambda step: not step.endswith(("!", "@", "~", "#"))), NUMBERS)
def test_every_row_of_a_step_names_the_step(step: str, number: int) -> None:
    assert ids.split_attempt(ids.attempt_of(step, number)) == (step, number)
    assert ids.split_pause(ids.pause_after(step, number)) == (step, number)
    assert ids.step_of(ids.pause_after(step, number)) == step
    assert (ids.path_of(step), ids.name_of(step)) == tuple(step.split(":", 1))


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("round", [1, 2, 11])
def test_messages_of_earlier_rounds_name_the_step(round: int, place: int) -> None:
    id = ids.message_of("4.1:wait_event", round, place)
    assert ids.split_message(id) == ("4.1:wait_event", round, place)
    assert ids.step_of(id) == "4.1:wait_event"


def _row(id: str, kind: str, data: object, **more: Any) -> HistoryEvent:
    return HistoryEvent("run-1", id, kind, json.dumps(data).encode(), **more)


STORED_AT = datetime(2026, 11, 15, tzinfo=UTC)
FAILURE = {"error_type": "app.PaymentError", "error_message": "declined", "stack_trace": "…"}
EARLIER = [  # as version 0.1 stored them: without digests, and with fields that have gone since
    (_row("1:charge", "ActivityCompleted", "receipt"), Completed("1:charge", b'"receipt"')),
    (
        HistoryEvent("run-1", "1:charge", "ActivityCompleted", None, b"\x00", "binary"),
        Completed("1:charge", b"null"),
    ),
    (_row("1:charge!", "ActivityStarted", {"order": 7}), Started("1:charge", b'{"order": 7}')),
    (
        _row("1:charge#2", "ActivityAttemptFailed", {**FAILURE, "attempt": 2, "pause_sec": 2.5}),
        AttemptFailed("1:charge", 2, FAILURE, 2.5),
    ),
    (
        _row("1:charge#2~", "TimerExpired", {"result": None, "timer_id": "1:charge#2~", "completed": True}),
        PauseEnded("1:charge", 2),
    ),
    (_row("2:timer", "TimerExpired", {"result": None}), TimerFired("2:timer")),
    (
        _row("3:wait_event#2", "ChannelMessageReceived", {"id": 5, "channel": "paid", "data": 1}),
        MessageReceived("3:wait_event", {"id": 5, "channel": "paid", "data": 1}, None, 2),
    ),
    (_row("3:wait_event", "MessageTimeout", {"error_type": "TimeoutError"}), WaitTimedOut("3:wait_event")),
    (_row("~4", "Values", {"values": {"4": 0.5}}), Taken("4", {"4": 0.5})),
    (_row("~state:2", "State", {"values": {}, "state": "sent"}), Taken("state:2", {}, b'"sent"', numbered=True)),
    (_row("~deadline", "Deadline", {"timeout_sec": 60}, created_at=STORED_AT), Deadline(timedelta(seconds=60))),
    (_row("~expired", "TimerExpired", {"result": None}), Expired()),
    (_row("~parent", "Parent", {"instance_id": "p", "channel": "~end/0/1"}), Parent("p", "~end/0/1")),
    (
        _row(
            "~undo:9",
            "CompensationFailed",
            {"compensation_id": 9, "activity_id": "1:charge", "activity_name": "charge", **FAILURE, "error": "no"},
        ),
        Compensated("1:charge", "charge", 9, FAILURE),
    ),
    (_row("workflow_failed", "WorkflowFailed", FAILURE), RunFailed(FAILURE)),
    (_row("workflow_cancelled", "WorkflowCancelled", {"reason": "late"}), RunCancelled("late")),
]


@pytest.mark.parametrize(("row", "record"), EARLIER, ids=lambda each: getattr(each, "activity_id", ""))
def test_rows_of_earlier_versions_are_read(row: HistoryEvent, record: Record) -> None:
    assert record_of(row) == record


@pytest.mark.parametrize(
    ("envelope", "channel"),
    [
        ({"channel": "paid"}, "paid"),
        ({"channel_name": "paid"}, "paid"),
        ({"channel": "paid", "channel_name": "other"}, "paid"),
        ({"channel": 1}, None),
        ({}, None),
        (None, None),
    ],
)
def test_channel_of_a_message_is_found_in_rows_of_any_framework(
    envelope: dict[str, object] | None, channel: str | None
) -> None:
    assert MessageReceived("1:receive", envelope, None, 1).channel == channel


def test_binary_message_has_no_number_and_no_metadata() -> None:
    assert MessageReceived("1:receive", None, b"raw", 1).message("paid") == Message("paid", b"raw", 0, {}, None)


def test_deadline_counts_from_the_time_of_its_row() -> None:
    found = record_of(_row("~deadline", "Deadline", {"timeout_sec": 60}, created_at=STORED_AT))
    assert isinstance(found, Deadline)
    assert found.ends_at == STORED_AT + timedelta(seconds=60)


@pytest.mark.parametrize(
    "row",
    [
        _row("step-1", "SomethingElse", {"a": 1}),
        _row("~until:1:receive", "Until", {"when": "?"}),
        _row("charge", "ActivityAttemptFailed", [1]),
        _row("~parent", "Parent", None),
    ],
    ids=lambda row: row.event_type,
)
def test_rows_of_other_frameworks_are_kept_as_they_are(row: HistoryEvent) -> None:
    found = record_of(row)
    assert found == ForeignRecord(row)
    assert (found.row_id, found.kind) == (row.activity_id, row.event_type)
    assert row_of("run-1", found) is row
