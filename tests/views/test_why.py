"""What a run does now, in a sentence."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import ErrorInfo, RunInfo, StuckInfo, WaitInfo, WaitKind, WorkflowStatus
from perdure.views.why import Activity, Details, explain

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RUN = RunInfo("r-1", "order", WorkflowStatus.RUNNING, {}, None, None, None, NOW - MINUTE, NOW, None)
S = WorkflowStatus


@pytest.mark.parametrize(
    ("fields", "activity", "sentence"),
    [
        ({"worker": "w-1", "lease_expires_at": NOW + MINUTE}, "running", "Worker w-1 executes the run."),
        ({"worker": "w-1", "lease_expires_at": NOW - MINUTE}, "queued", "Worker w-1 held the run and its lease has"),
        ({}, "queued", "Waits for a worker."),
        (
            {"status": S.COMPENSATING, "error": ErrorInfo("shop.PaymentError", "declined")},
            "queued",
            "Waits for a worker. It failed: PaymentError: declined.",
        ),
        ({"stuck": StuckInfo("LookupError: no", NOW - MINUTE, NOW + MINUTE)}, "stuck", "Stuck: LookupError: no"),
        ({"status": S.COMPLETED, "finished_at": NOW}, "ended", "Completed in 1 min."),
        (
            {"status": S.FAILED, "finished_at": NOW, "error": ErrorInfo("a.E", "no")},
            "ended",
            "Failed after 1 min: E: no",
        ),
        (
            {"status": S.CANCELLED, "finished_at": NOW, "error": ErrorInfo("a.C", "why not")},
            "ended",
            "Cancelled after 1 min: why not",
        ),
        ({"status": S.RECURRED, "finished_at": NOW}, "ended", "Continued with new input after 1 min (recur)."),
        ({"status": S.WAITING_FOR_TIMER}, "waiting", "Waits, and its waits have just ended."),
    ],
)
def test_state_is_explained(fields: dict[str, Any], activity: str, sentence: str) -> None:
    found = explain(replace(RUN, **fields), NOW)
    assert found.activity is Activity(activity)
    assert found.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        (WaitKind.EVENT, "order.paid", "event order.paid, with a timeout in 1 min"),
        (WaitKind.CHANNEL, "news", "a message on channel news, with a timeout in 1 min"),
        (WaitKind.CHILD, "ship", "the end of child ship, with a timeout in 1 min"),
        (WaitKind.TIMER, "2:timer", "the timer of step 2:timer, due in 1 min"),
        (WaitKind.RETRY, "3:charge", "the next attempt of step 3:charge in 1 min"),
        (WaitKind.START, "start", "its start in 1 min"),
    ],
)
def test_wait_is_explained(kind: WaitKind, name: str, sentence: str) -> None:
    run = replace(RUN, status=S.WAITING_FOR_MESSAGE, waiting_for=(WaitInfo(kind, name, NOW + MINUTE),))
    assert explain(run, NOW).sentence == f"Waits for {sentence}."


def test_a_time_is_named_after_what_it_may_be_the_timeout_of() -> None:
    waits = (WaitInfo(WaitKind.TIMER, "1:timer", NOW + MINUTE), WaitInfo(WaitKind.EVENT, "paid"))
    run = replace(RUN, status=S.WAITING_FOR_MESSAGE, waiting_for=waits)
    found = explain(run, NOW)
    assert found.sentence == "Waits for event paid, or the timer of step 1:timer, due in 1 min."
    assert found.advice == "Send the event paid to the run if its sender failed to."
    assert found.until == NOW + MINUTE


def test_silent_worker_is_not_said_to_execute_the_run() -> None:
    run = replace(RUN, worker="w-1", lease_expires_at=NOW + MINUTE)
    found = explain(run, NOW, Details(silent_since=NOW - MINUTE))
    assert found.activity is Activity.QUEUED
    assert found.sentence == ("Worker w-1 holds the run and has sent no heartbeat for 1 min: it has probably died.")
    assert found.advice == "Another worker takes the run over when the lease expires in 1 min."


def test_error_of_the_last_attempt_is_told() -> None:
    run = replace(RUN, status=S.WAITING_FOR_TIMER, waiting_for=(WaitInfo(WaitKind.RETRY, "3:charge", NOW + MINUTE),))
    found = explain(run, NOW, Details(retried={"3:charge": ErrorInfo("a.BankError", "closed")}))
    assert found.sentence == (
        "Waits for the next attempt of step 3:charge in 1 min. The last attempt failed: BankError: closed."
    )
    assert found.advice == ""
    assert explain(run, NOW).advice == "The attempt before failed; see the step for its error."


def test_failed_compensations_are_told() -> None:
    left = {f"{number}:book": ErrorInfo("a.E", f"no {number}") for number in range(1, 6)}
    failed = replace(RUN, status=S.FAILED, finished_at=NOW, error=ErrorInfo("a.E", "no"))
    found = explain(failed, NOW, Details("6:pay", not_undone=dict(list(left.items())[:1])))
    assert found.sentence == "Failed in step 6:pay after 1 min: E: no. The compensation of step 1:book failed: E: no 1."
    assert found.advice == "Undo by hand what was not compensated and fix the cause, then retry the run."
    cancelled = replace(RUN, status=S.CANCELLED, finished_at=NOW)
    found = explain(cancelled, NOW, Details(not_undone=left))
    assert found.sentence.startswith("Cancelled after 1 min. The compensation of step 1:book failed: E: no 1. The ")
    assert found.sentence.endswith("failed: E: no 3. 2 more compensations failed.")
    assert found.advice == "Undo by hand what was not compensated."


def test_compensation_that_is_retried_is_told() -> None:
    run = replace(RUN, status=S.COMPENSATING, worker="w-1", lease_expires_at=NOW + MINUTE, error=ErrorInfo("a.E", "no"))
    found = explain(run, NOW, Details(undoing={"1:book": ErrorInfo("a.E", "no answer")}))
    assert found.sentence == (
        "Worker w-1 compensates completed steps of the run. It failed: E: no. "
        "The compensation of step 1:book is retried after: E: no answer."
    )


def test_many_waits_are_counted() -> None:
    waits = tuple(WaitInfo(WaitKind.EVENT, f"e{number}") for number in range(5))
    run = replace(RUN, status=S.WAITING_FOR_MESSAGE, waiting_for=waits)
    assert explain(run, NOW).sentence == "Waits for event e0, event e1, event e2, or 2 more."
