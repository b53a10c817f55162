"""What a run does now, and why it waits, in a sentence: for the pages of the dashboard, also a row of a list.

`perdure.inspection.reasons` says the same in a paragraph that names the run, for the command line. It has read the
workers, so it also knows whether a live one serves the workflow, and it advises commands instead of buttons.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from perdure.engine.api.run_info import ErrorInfo, RunInfo, WaitInfo, WaitKind
from perdure.model.states import RESUMABLE, WorkflowStatus
from perdure.views.durations import short

MESSAGE_MAX = 400  # characters of an error in a sentence; the page of the run has all of them


class Activity(StrEnum):
    """What kind of thing a run does now."""

    RUNNING = "running"  # a worker executes it
    QUEUED = "queued"  # it could run, and no worker has taken it yet
    WAITING = "waiting"  # for an event, a message, a child or a time
    STUCK = "stuck"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a run does now: a sentence, since when, until when, and what a person can do about it."""

    activity: Activity
    sentence: str
    advice: str = ""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Details:
    """What is known of a run besides its row; nothing in a list.

    - `step`: the step that failed or that is executed.
    - `retried`: the error of the last attempt of each step that is to be attempted again.
    - `not_undone`: the steps whose compensation failed, with the error of its last attempt.
    - `undoing`: the same while the compensation is attempted again.
    - `silent_since`: the last heartbeat of the worker that holds the run, if it is not live.
    - `has_left`: the worker that holds the run is not registered any more.
    """

    step: str | None = None
    retried: Mapping[str, ErrorInfo] = field(default_factory=dict)
    not_undone: Mapping[str, ErrorInfo] = field(default_factory=dict)
    undoing: Mapping[str, ErrorInfo] = field(default_factory=dict)
    silent_since: datetime | None = None
    has_left: bool = False


_NOTHING = Details()


def explain(run: RunInfo, now: datetime, details: Details = _NOTHING) -> Explanation:
    """Return what a run does now and why."""
    step = details.step
    if run.finished_at is not None:
        return _ended(run, run.finished_at, details)
    if run.stuck is not None:
        until = run.stuck.next_retry_at
        advice = "The run continues by itself once the cause is gone."
        if until is not None:
            advice = f"The next try is {_when(until, now)}. {advice}"
        return Explanation(Activity.STUCK, f"Stuck: {run.stuck.reason}", advice, run.stuck.since, until)
    verb = "compensates completed steps of" if run.status is WorkflowStatus.COMPENSATING else "executes"
    cause = f" It {_fate(run)}.{_undoing(details)}" if run.status is WorkflowStatus.COMPENSATING else ""
    if run.worker is not None:
        at = f", in step {step}" if step and run.status is not WorkflowStatus.COMPENSATING else ""
        late = run.lease_expires_at is not None and run.lease_expires_at < now
        if late:
            return Explanation(
                Activity.QUEUED,
                f"Worker {run.worker} held the run and its lease has expired: another worker takes it over.{cause}",
                "If this lasts, no live worker serves the workflow.",
                run.lease_expires_at,
            )
        if details.silent_since is not None or details.has_left:
            state = "but has left"
            if details.silent_since is not None:
                silent = short(now - details.silent_since)
                state = f"and has sent no heartbeat for {silent}: it has probably died"
            return Explanation(
                Activity.QUEUED,
                f"Worker {run.worker} holds the run {state}.{cause}",
                f"Another worker takes the run over when the lease expires {_when(run.lease_expires_at or now, now)}.",
                details.silent_since or run.updated_at,
                run.lease_expires_at,
            )
        return Explanation(Activity.RUNNING, f"Worker {run.worker} {verb} the run{at}.{cause}", "", run.updated_at)
    if run.status in RESUMABLE:
        return Explanation(
            Activity.QUEUED,
            f"Waits for a worker.{cause}",
            "Workers take the longest waiting run first; more workers or a higher max_runs= shorten the wait.",
            run.updated_at,
        )
    return _waiting(run, now, details)


def _ended(run: RunInfo, at: datetime, details: Details) -> Explanation:
    took, left = short(at - run.started_at), _not_undone(details)
    place = f" in step {details.step}" if details.step else ""
    by_hand = "Undo by hand what was not compensated" if left else ""

    def and_left(sentence: str) -> str:
        return f"{sentence.removesuffix('.')}.{left}" if left else sentence

    match run.status:
        case WorkflowStatus.COMPLETED:
            return Explanation(Activity.ENDED, f"Completed in {took}.", since=at)
        case WorkflowStatus.FAILED:
            error = f": {_named(run.error)}" if run.error is not None else ""
            advice = f"{by_hand} and fix the cause" if left else "Fix the cause"
            sentence = and_left(f"Failed{place} after {took}{error}")
            return Explanation(Activity.ENDED, sentence, f"{advice}, then retry the run.", at)
        case WorkflowStatus.CANCELLED:
            reason = f": {shortened(run.error.message)}" if run.error is not None and run.error.message else "."
            advice = f"{by_hand}." if left else ""
            return Explanation(Activity.ENDED, and_left(f"Cancelled after {took}{reason}"), advice, at)
    return Explanation(Activity.ENDED, f"Continued with new input after {took} (recur).", since=at)


def _not_undone(details: Details) -> str:
    """Return whose compensation failed, as sentences; empty if none did."""
    found = [f" The compensation of step {step} failed: {_named(error)}." for step, error in details.not_undone.items()]
    more = f" {len(found) - 3:,} more compensations failed." if len(found) > 3 else ""
    return "".join(found[:3]) + more


def _undoing(details: Details) -> str:
    """Return what the last attempt of a compensation said that is attempted again, as a sentence."""
    found = list(details.undoing.items())[:1]
    return "".join(f" The compensation of step {step} is retried after: {_named(error)}." for step, error in found)


def _fate(run: RunInfo) -> str:
    if run.error is None:
        return "then ends"
    if run.error.type.endswith("WorkflowCancelledError"):
        return f"was cancelled{': ' + shortened(run.error.message) if run.error.message else ''}"
    return f"failed: {_named(run.error)}"


def _named(error: ErrorInfo) -> str:
    """Return an error with the name of its class, without the module."""
    name = error.type.rpartition(".")[2]
    return f"{name}: {shortened(error.message)}" if error.message else name


def shortened(message: str) -> str:
    """Return a message that is no longer than a page shows in a sentence."""
    return message if len(message) <= MESSAGE_MAX else f"{message[:MESSAGE_MAX].rstrip()} …"


def _waiting(run: RunInfo, now: datetime, details: Details) -> Explanation:
    waits = sorted(run.waiting_for, key=lambda each: each.kind is WaitKind.TIMER)  # a time is often only the timeout
    if not waits:
        return Explanation(Activity.WAITING, "Waits, and its waits have just ended.", since=run.updated_at)
    first = min(waits, key=lambda each: (each.until is None, each.until or now))
    listed = [wait_sentence(each, now) for each in waits[:3]]
    if len(waits) > 3:
        listed.append(f"{len(waits) - 3} more")
    *others, last = listed
    what = f"{', '.join(others)}, or {last}" if others else last
    errors = (details.retried.get(each.name) for each in waits if each.kind is WaitKind.RETRY)
    error = next((each for each in errors if each is not None), None)
    cause = f" The last attempt failed: {_named(error)}." if error is not None else ""
    advice = "" if cause else _advice(waits[0])
    return Explanation(Activity.WAITING, f"Waits for {what}.{cause}", advice, run.updated_at, first.until)


def wait_sentence(wait: WaitInfo, now: datetime) -> str:
    """Return what a run waits for, as the end of a sentence."""
    until = f", with a timeout {_when(wait.until, now)}" if wait.until is not None else ""
    match wait.kind:
        case WaitKind.START:
            return f"its start {_when(wait.until, now)}" if wait.until else "its start"
        case WaitKind.TIMER:
            return f"the timer of step {wait.name}{', due ' + _when(wait.until, now) if wait.until else ''}"
        case WaitKind.RETRY:
            return f"the next attempt of step {wait.name}{' ' + _when(wait.until, now) if wait.until else ''}"
        case WaitKind.EVENT:
            return f"event {wait.name}{until}"
        case WaitKind.CHANNEL:
            return f"a message on channel {wait.name}{until}"
    return f"the end of child {wait.name}{until}"


def _advice(wait: WaitInfo) -> str:
    match wait.kind:
        case WaitKind.EVENT:
            return f"Send the event {wait.name} to the run if its sender failed to."
        case WaitKind.RETRY:
            return "The attempt before failed; see the step for its error."
        case WaitKind.CHILD:
            return "See the child for what it does."
    return ""


def _when(moment: datetime, now: datetime) -> str:
    """Return a time relative to now: `in 3 min`, `5 s ago`; `now` if it is due."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {short(seconds)}" if seconds > 0 else f"{short(-seconds)} ago"
