"""Why a run is where it is."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perdure import ErrorInfo, RunInfo, StepInfo, StepKind, StepStatus, StuckInfo, WaitInfo, WaitKind, WorkflowStatus
from perdure.inspection import WorkerInfo, explain

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


def before(**span: float) -> datetime:
    return NOW - timedelta(**span)


RUN = RunInfo("o-1", "order", WorkflowStatus.RUNNING, {}, None, None, None, before(hours=1), before(minutes=5), None)
WORKER = WorkerInfo("w-1", before(days=1), before(seconds=3), True, ("order",), 15.0)
DEAD = replace(WORKER, is_live=False, beat_at=before(minutes=3))
OTHER = replace(WORKER, id="w-2", workflows=("other",))
PAID = WaitInfo(WaitKind.EVENT, "paid")
WAITING = replace(RUN, status=WorkflowStatus.WAITING_FOR_MESSAGE)


def test_what_a_rollback_could_not_undo_is_named_before_a_retry_is_proposed() -> None:
    failed = replace(RUN, status=WorkflowStatus.FAILED, error=ErrorInfo("ValueError", "full"), finished_at=NOW)
    error = ErrorInfo("builtins.ConnectionError", "no answer")
    left = StepInfo("~undo:7", "charge", StepKind.COMPENSATION, StepStatus.FAILED, 3, error=error)
    undone = replace(left, id="~undo:8", name="reserve", status=StepStatus.COMPLETED, error=None)
    text = explain(failed, [], NOW, [left, undone]).text
    assert "The compensation of charge (ConnectionError: no answer) failed: undo that by hand first." in text
    assert text.index("undo that by hand") < text.index("perdure retry o-1")
    assert "compensation" not in explain(failed, [], NOW, [undone]).text


@pytest.mark.parametrize(
    ("run", "workers", "situation", "parts"),
    [
        (
            replace(RUN, worker="w-1", lease_expires_at=before(seconds=-10)),
            [WORKER],
            "executing",
            ["Worker w-1 executes run o-1 (order)", "would expire in 10 s"],
        ),
        (
            replace(RUN, worker="w-1", lease_expires_at=before(seconds=-10)),
            [DEAD],
            "orphaned",
            ["no heartbeat for 3 min", "when the lease expires in 10 s", "No live worker serves"],
        ),
        (
            replace(RUN, worker="w-1", lease_expires_at=before(seconds=20)),
            [DEAD, replace(WORKER, id="w-3")],
            "orphaned",
            ["Its lease expired 20 s ago", "takes the run next"],
        ),
        (RUN, [WORKER], "queued", ["for 5 min, and no worker holds its lease", "1 live worker can take it"]),
        (RUN, [OTHER], "unserved", ["No live worker serves the workflow 'order'"]),
        (
            replace(RUN, attempts=4, stuck=StuckInfo("ValueError: bad", before(hours=2), before(seconds=-30))),
            [WORKER],
            "stuck",
            ["stuck for 2 h: 4 tries", "ValueError: bad", "A worker retries it in 30 s. It continues"],
        ),
        (
            replace(RUN, attempts=4, stuck=StuckInfo("ValueError: bad", before(hours=2), before(seconds=30))),
            [],
            "stuck",
            ["It has been due for a retry for 30 s: is a worker running?"],
        ),
        (
            replace(WAITING, waiting_for=(WaitInfo(WaitKind.EVENT, "paid", before(minutes=-59)),)),
            [WORKER],
            "waiting",
            ["waits for an event of type 'paid', with a timeout that ends in 59 min", "`perdure send paid DATA`"],
        ),
        (
            replace(WAITING, waiting_for=(WaitInfo(WaitKind.TIMER, "2:timer", before(minutes=2)),)),
            [],
            "waiting",
            ["the timer of step 2:timer, due 2 min ago", "That was due 2 min ago: is a worker running?"],
        ),
        (
            replace(WAITING, waiting_for=(WaitInfo(WaitKind.CHILD, "pack"), WaitInfo(WaitKind.CHANNEL, "news"))),
            [WORKER],
            "waiting",
            ["the first of: the end of its child 'pack'; a message on channel 'news'"],
        ),
        (
            replace(WAITING, waiting_for=(WaitInfo(WaitKind.TIMER, "1:timer", before(minutes=-2)), PAID)),
            [WORKER],
            "waiting",
            ["the first of: an event of type 'paid'; the timer of step 1:timer, due in 2 min"],
        ),
        (
            replace(RUN, status=WorkflowStatus.FAILED, finished_at=before(minutes=5), error=ErrorInfo("E", "no")),
            [],
            "ended",
            ["failed 5 min ago, 55 min after it started", "The error was E: no", "`perdure retry o-1`"],
        ),
        (
            replace(
                replace(RUN, id="-o 'x'", status=WorkflowStatus.FAILED, finished_at=before(minutes=5)),
                error=ErrorInfo("builtins.ValueError", "no"),
            ),
            [],
            "ended",
            ["The error was ValueError: no", """`perdure retry -- '-o '"'"'x'"'"''`"""],
        ),
        (
            replace(WAITING, waiting_for=(WaitInfo(WaitKind.CHANNEL, "all news"),)),
            [WORKER],
            "waiting",
            ["`perdure publish 'all news' DATA` would release it"],
        ),
        (
            replace(RUN, status=WorkflowStatus.CANCELLED, finished_at=before(minutes=5), error=ErrorInfo("E", "fraud")),
            [],
            "ended",
            ["was cancelled", "The reason given was: fraud."],
        ),
    ],
)
def test_reason_says_what_the_run_waits_for_and_what_releases_it(
    run: RunInfo, workers: list[WorkerInfo], situation: str, parts: list[str]
) -> None:
    reason = explain(run, workers, NOW)
    assert reason.situation == situation
    assert [part for part in parts if part not in reason.text] == []
    assert "\n" not in reason.text
