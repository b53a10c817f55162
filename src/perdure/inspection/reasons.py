"""Why a run is where it is: what it waits for, since when, which worker holds it, and what would release it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from perdure.engine.api.run_info import ErrorInfo, RunInfo, WaitInfo, WaitKind
from perdure.engine.api.step_info import StepInfo, StepKind, StepStatus
from perdure.inspection.workers import WorkerInfo
from perdure.model.states import TERMINAL, WAITING, WorkflowStatus

Situation = Literal["ended", "stuck", "unserved", "orphaned", "executing", "queued", "waiting"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run is where it is.

    - `situation`: `ended`; `stuck` (in back-off after tries without progress); `unserved` (no live worker serves its
      workflow); `orphaned` (its worker died and its lease has not expired); `executing`; `queued` (any worker may take
      it); `waiting`.
    - `since`: since when; `until`: when it changes at the latest, or None.
    - `worker`: the worker that holds the lease, or None.
    - `text`: one paragraph for people.
    """

    situation: Situation
    since: datetime
    until: datetime | None
    worker: str | None
    text: str


def explain(run: RunInfo, workers: Sequence[WorkerInfo], now: datetime, steps: Sequence[StepInfo] = ()) -> Reason:
    """Return why a run is where it is.

    `now` is the time of the database, and `workers` are all that it lists. With the `steps` of a run that has ended, it
    also says what its rollback could not undo.
    """
    if run.status in TERMINAL:
        return _ended(run, now, [each for each in steps if _is_not_undone(each)])
    if run.worker is not None:
        return _leased(run, workers, now)
    if run.stuck is not None and run.stuck.next_retry_at is not None:
        return _backed_off(run, now)
    if run.status in WAITING:
        return _waiting(run, workers, now)
    return _queued(run, workers, now)


def _is_not_undone(step: StepInfo) -> bool:
    return step.kind is StepKind.COMPENSATION and step.status is StepStatus.FAILED


def _ended(run: RunInfo, now: datetime, not_undone: Sequence[StepInfo]) -> Reason:
    since = run.finished_at or run.updated_at
    took = duration(since - run.started_at)
    text = f"Run {run.id} ({run.workflow}) {_past(run.status)} {ago(since, now)}, {took} after it started."
    if run.status is WorkflowStatus.RECURRED:
        text += " It is a generation that ended with recur(); the run continues under its own id."
    if run.error is not None:
        told = f" The error was {error_text(run.error)}." if run.status is WorkflowStatus.FAILED else _told(run)
        text += f"{told}{_left(not_undone)} Start it again with `perdure retry {_argument(run.id)}`."
    return Reason("ended", since, None, None, text)


def _left(not_undone: Sequence[StepInfo]) -> str:
    """Return what a rollback has left, as sentences."""
    if not not_undone:
        return ""
    shown = [each.name if each.error is None else f"{each.name} ({error_text(each.error)})" for each in not_undone[:3]]
    if len(not_undone) > 3:
        shown.append(f"{len(not_undone) - 3} more")
    return f" The compensation of {'; '.join(shown)} failed: undo that by hand first."


def _told(run: RunInfo) -> str:
    reason = run.error.message if run.error is not None else ""
    return f" The reason given was: {reason}." if reason else " No reason was given."


def _past(status: WorkflowStatus) -> str:
    return "was cancelled" if status is WorkflowStatus.CANCELLED else status.value


def _leased(run: RunInfo, workers: Sequence[WorkerInfo], now: datetime) -> Reason:
    held = [worker for worker in workers if worker.id == run.worker]
    expires = run.lease_expires_at
    doing = "rolls back" if run.status is WorkflowStatus.COMPENSATING else "executes"
    start = f"Worker {run.worker} {doing} run {run.id} ({run.workflow}), last change {ago(run.updated_at, now)}."
    if expires is not None and expires <= now:
        rest = (
            f" Its lease expired {ago(expires, now)}, so any worker that serves {run.workflow!r} takes the run next."
            + _serving(run, workers)
        )
        return Reason("orphaned", expires, None, run.worker, start + rest)
    if held and not held[0].is_live:
        rest = (
            f" The worker has sent no heartbeat for {duration(now - held[0].beat_at)} and is probably dead: another "
            f"worker takes the run when the lease expires {ahead(expires, now)}." + _serving(run, workers)
        )
        return Reason("orphaned", held[0].beat_at, expires, run.worker, start + rest)
    rest = f" It renews its lease, which would expire {ahead(expires, now)}." + _open_waits(run, now)
    return Reason("executing", run.updated_at, expires, run.worker, start + rest + _tries(run))


def _tries(run: RunInfo) -> str:
    if run.stuck is None:
        return ""
    return f" Earlier tries ended without progress: {run.stuck.reason}."


def _open_waits(run: RunInfo, now: datetime) -> str:
    if not run.waiting_for:
        return ""
    return f" It also waits for {_waits(run.waiting_for, now)}."


def _backed_off(run: RunInfo, now: datetime) -> Reason:
    stuck = run.stuck
    assert stuck is not None
    again = stuck.next_retry_at
    if again is not None and again <= now:
        retry = f"It has been due for a retry for {duration(now - again)}: is a worker running?"
    else:
        retry = f"A worker retries it {ahead(again, now)}."
    text = (
        f"Run {run.id} ({run.workflow}) has been stuck for {duration(now - stuck.since)}: {run.attempts} tries in a "
        f"row ended without progress. The last error was: {stuck.reason}. {retry} It continues as soon as a try "
        "succeeds, for example after compatible code is deployed."
    )
    return Reason("stuck", stuck.since, again, None, text)


def _queued(run: RunInfo, workers: Sequence[WorkerInfo], now: datetime) -> Reason:
    since = run.stuck.since if run.stuck is not None else run.updated_at
    doing = "to be rolled back" if run.status is WorkflowStatus.COMPENSATING else "to be executed"
    waited = duration(now - since)
    start = f"Run {run.id} ({run.workflow}) has been waiting {doing} for {waited}, and no worker holds its lease."
    serving = _servers(run, workers)
    if not serving:
        return Reason("unserved", since, None, None, start + _serving(run, workers))
    rest = (
        f" {_count(len(serving), 'live worker')} can take it; if that lasts, they are busy (max_runs) or cannot reach "
        "the database."
    )
    return Reason("queued", since, None, None, start + rest)


def _waiting(run: RunInfo, workers: Sequence[WorkerInfo], now: datetime) -> Reason:
    until = min((wait.until for wait in run.waiting_for if wait.until is not None), default=None)
    what = _waits(run.waiting_for, now) if run.waiting_for else "something that is not recorded"
    text = (
        f"Run {run.id} ({run.workflow}) waits for {what}. It has been waiting for {duration(now - run.updated_at)}, "
        f"and no worker holds it meanwhile. {_release(run, until, now)}"
    )
    if run.deadline is not None:
        text += f" Its timeout cancels it {ahead(run.deadline, now)}."
    return Reason("waiting", run.updated_at, until, None, text + _serving(run, workers))


def _release(run: RunInfo, until: datetime | None, now: datetime) -> str:
    overdue = _overdue(until, now)
    for wait in run.waiting_for:
        match wait.kind:
            case WaitKind.EVENT:
                return f"`perdure send {_argument(wait.name)} DATA` would release it, if the event matches." + overdue
            case WaitKind.CHANNEL:
                return f"`perdure publish {_argument(wait.name)} DATA` would release it." + overdue
            case WaitKind.CHILD:
                return "The end of the child releases it: see `perdure trace`." + overdue
    return "Time releases it." + overdue


def _argument(text: str) -> str:
    """Return a text as an argument that a shell and the command line read as it is."""
    quoted = shlex.quote(text)
    return f"-- {quoted}" if text.startswith("-") else quoted


def _overdue(until: datetime | None, now: datetime) -> str:
    if until is None or now - until < timedelta(seconds=10):
        return ""
    return f" That was due {ago(until, now)}: is a worker running?"


def _waits(waits: Sequence[WaitInfo], now: datetime) -> str:
    ordered = sorted(waits, key=lambda each: each.kind is WaitKind.TIMER)  # a time is often only the timeout of others
    shown = [_wait(each, now) for each in ordered[:3]]
    if len(waits) > 3:
        shown.append(f"{len(waits) - 3} more")
    return shown[0] if len(shown) == 1 else f"the first of: {'; '.join(shown)}"


def _wait(wait: WaitInfo, now: datetime) -> str:
    match wait.kind:
        case WaitKind.START:
            return f"its start {ahead(wait.until, now)}"
        case WaitKind.TIMER:
            return f"the timer of step {wait.name}, due {ahead(wait.until, now)}"
        case WaitKind.RETRY:
            return f"the next attempt of {wait.name} {ahead(wait.until, now)}"
        case WaitKind.EVENT:
            what = f"an event of type {wait.name!r}"
        case WaitKind.CHANNEL:
            what = f"a message on channel {wait.name!r}"
        case WaitKind.CHILD:
            what = f"the end of its child {wait.name!r}"
    if wait.until is None:
        return what
    return f"{what}, with a timeout that ends {ahead(wait.until, now)}"


def _servers(run: RunInfo, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    return [each for each in workers if each.is_live and (each.workflows is None or run.workflow in each.workflows)]


def _serving(run: RunInfo, workers: Sequence[WorkerInfo]) -> str:
    if _servers(run, workers):
        return ""
    return (
        f" No live worker serves the workflow {run.workflow!r}: start one (`perdure worker module:app`), or check "
        "whether the workflow was renamed."
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def error_text(error: ErrorInfo) -> str:
    """Return the type of an error, as a traceback names it, and its message."""
    return f"{error.type.removeprefix('builtins.')}: {error.message}"


def ago(moment: datetime, now: datetime) -> str:
    """Return a time of the past in words: `5 min ago`."""
    return f"{duration(now - moment)} ago"


def ahead(moment: datetime | None, now: datetime) -> str:
    """Return a time in words: `in 5 min`, or `5 min ago` if it has passed."""
    if moment is None:
        return "at an unknown time"
    return f"in {duration(moment - now)}" if moment > now else ago(moment, now)


def duration(span: timedelta) -> str:
    """Return a duration in its largest two units: `1 d 2 h`, `5 min`, `12 s`, `0.3 s`."""
    seconds = max(span.total_seconds(), 0.0)
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 0.05 else "0 s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 and rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days < 10 and hours else f"{days} d"
