"""Timelines: derived starts, attempts, idle time that is collapsed, and folding; without a database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perdure import StepInfo, StepKind, StepStatus
from perdure.dashboard.charts import Buckets
from perdure.dashboard.timeline import Part, Phase, Row, Scale, folded, rows_of
from perdure.engine.history.records import AttemptFailed, row_of
from perdure.model.records import EndedInstance, HistoryEvent
from perdure.model.states import WorkflowStatus

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def step(id: str, end: float | None, kind: StepKind = StepKind.ACTIVITY, start: float | None = None) -> StepInfo:
    return StepInfo(
        id,
        id.partition(":")[2],
        kind,
        StepStatus.WAITING if end is None else StepStatus.COMPLETED,
        1,
        started_at=None if start is None else at(start),
        finished_at=None if end is None else at(end),
    )


def begins(*steps: StepInfo, until: float = 100) -> dict[str, float]:
    rows = rows_of(steps, [], NOON, at(until))
    return {row.id: (row.begin - NOON).total_seconds() for row in rows}


def test_step_begins_when_the_one_before_it_ends() -> None:
    assert begins(step("2:b", 7), step("1:a", 3), step("3:c", None)) == {"1:a": 0, "2:b": 3, "3:c": 7}


def test_concurrent_tasks_begin_together_and_the_body_goes_on_after_them() -> None:
    found = begins(step("1:a", 2), step("2.1:b", 5), step("3.1:c", 9), step("3.2:d", 10), step("4:e", 12))
    assert found == {"1:a": 0, "2.1:b": 2, "3.1:c": 2, "3.2:d": 9, "4:e": 10}


def test_task_that_ends_later_does_not_delay_what_ran_beside_it() -> None:
    assert begins(step("1.1:slow", 50), step("2:b", 4)) == {"1.1:slow": 0, "2:b": 0}


def test_steps_that_end_together_began_together() -> None:
    assert begins(step("1:a", 2), step("2:b", 5), step("3:c", 5)) == {"1:a": 0, "2:b": 2, "3:c": 2}


def test_recorded_start_is_used() -> None:
    (row,) = rows_of([step("1:a", 9, start=6)], [], NOON, at(10))
    assert (row.begin, row.exact) == (at(6), True)


def test_attempts_are_parts_with_pauses_between_them() -> None:
    failed = [row_of("r", AttemptFailed("1:a", number, {"error_type": "E"}, 2.0)) for number in (1, 2)]
    rows = [
        HistoryEvent("r", each.activity_id, each.event_type, each.event_data, created_at=at(1 + 4 * number))
        for number, each in enumerate(failed)
    ]
    (row,) = rows_of([step("1:a", 9)], rows, NOON, at(10))
    assert row.parts == (
        Part(Phase.RUN, at(0), at(1)),
        Part(Phase.PAUSE, at(1), at(3)),
        Part(Phase.RUN, at(3), at(5)),
        Part(Phase.PAUSE, at(5), at(7)),
        Part(Phase.RUN, at(7), at(9)),
    )
    assert (row.attempts, row.failures) == (3, (at(1), at(5)))


def test_long_idle_time_is_collapsed_with_its_length() -> None:
    days = 3 * 86400.0
    rows = rows_of(
        [step("1:a", 4), step("2:timer", 4 + days, StepKind.TIMER), step("3:b", 10 + days)], [], NOON, at(10 + days)
    )
    scale = Scale(rows, NOON, at(10 + days))
    (gap,) = scale.gaps
    assert gap.length == timedelta(days=3)
    assert scale.place(NOON) == 0
    assert round(scale.place(at(10 + days))) == 1000
    busy = scale.place(at(4)), 1000 - scale.place(at(4 + days))
    assert busy[1] / busy[0] == pytest.approx(6 / 4)  # both are to scale
    places = [scale.place(at(seconds)) for seconds in (0, 2, 4, 1000, days, 5 + days, 10 + days)]
    assert places == sorted(places)


def test_short_waits_are_drawn_to_scale() -> None:
    rows = rows_of([step("1:a", 4), step("2:timer", 6, StepKind.TIMER), step("3:b", 10)], [], NOON, at(10))
    scale = Scale(rows, NOON, at(10))
    assert scale.gaps == []
    assert [round(scale.place(at(each))) for each in (0, 4, 6, 10)] == [0, 400, 600, 1000]


def test_run_that_only_waits_is_not_collapsed() -> None:
    rows = rows_of([step("1:timer", None, StepKind.TIMER)], [], NOON, at(1000))
    assert Scale(rows, NOON, at(1000)).gaps == []


def test_equal_siblings_are_folded_with_errors_first() -> None:
    steps = [step(f"{number}.1:pack", 5) for number in range(1, 9)]
    rows = rows_of(steps, [], NOON, at(10))
    failed = Row(**{**{name: getattr(rows[5], name) for name in Row.__slots__}, "status": "failed"})
    rows[5] = failed
    group, error = folded(rows, ())
    assert (group.members, group.status, dict(group.counts)) == (8, "failed", {"completed": 7, "failed": 1})
    assert (error.id, error.inside) == ("6.1:pack", True)
    opened = folded(rows, {group.id, "a child"})
    assert len(opened) == 9
    assert opened[1].status == "failed"
    assert len(folded(rows[:5], ())) == 5


def test_equal_steps_are_told_apart_by_their_numbers() -> None:
    done = [step("1:pack", 1), step("2:charge", 2), step("3.1:pack", 3)]
    undone = [
        replace(step("~undo:3.1:pack", 5, StepKind.COMPENSATION), name="pack"),
        replace(step("~undo:1:pack", 6, StepKind.COMPENSATION), name="pack"),
    ]
    shown = folded(rows_of([*done, *undone], [], NOON, at(10)), ())
    assert [row.number for row in shown if row.alike] == ["1", "3.1", "3.1", "1"]
    assert [row.id for row in shown if not row.alike] == ["2:charge"]


def test_rows_of_a_run_without_steps_are_empty() -> None:
    assert rows_of([], [], NOON, at(1)) == []
    assert round(Scale([], NOON, NOON).place(NOON)) == 0


def test_one_long_run_does_not_make_the_chart_of_durations_flat() -> None:
    def chart(*seconds: float) -> Buckets:
        ended = [
            EndedInstance(f"r-{number}", "w", WorkflowStatus.COMPLETED, at(5 * number - each), at(5 * number))
            for number, each in enumerate(seconds)
        ]
        return Buckets(ended, at(5 * 60), timedelta(seconds=5))

    similar = chart(1.0, 2.0, 4.0)
    assert [similar.level(each) for each in (1.0, 2.0, 4.0)] == [0.25, 0.5, 1.0]
    mixed = chart(0.01, 0.1, 100_000.0)
    assert mixed.is_logarithmic
    assert mixed.level(0.01) == 0
    assert mixed.level(0.1) == pytest.approx(1 / 7)
    assert mixed.level(100_000.0) == 1
