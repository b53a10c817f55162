"""Log messages about runs: one sentence for each hook event, with the event's fields in `extra`.

Failed runs are logged as errors, retries and stuck runs as warnings, cancelled runs as information, and everything else
for debugging. No message contains arguments or results.
"""

import logging
from dataclasses import fields
from datetime import timedelta

from perdure.engine.execution.interfaces import Executable
from perdure.hooks import (
    CompensationCompleted,
    CompensationFailed,
    HookEvent,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRecurred,
    RunResumed,
    RunStarted,
    RunStuck,
    RunWaiting,
    StepCompleted,
    StepFailed,
    StepRetrying,
)

log = logging.getLogger("perdure.engine")

LEVELS: dict[type[HookEvent], int] = {
    RunFailed: logging.ERROR,
    CompensationFailed: logging.ERROR,
    StepRetrying: logging.WARNING,
    RunStuck: logging.WARNING,
    RunCancelled: logging.INFO,
}


def is_logged(kind: type[HookEvent]) -> bool:
    """Return whether the level of the log includes events of this kind."""
    return log.isEnabledFor(LEVELS.get(kind, logging.DEBUG))


def log_event(event: HookEvent, worker_id: str) -> None:
    """Log an event of a run."""
    if is_logged(type(event)):
        log.log(
            LEVELS.get(type(event), logging.DEBUG),
            "run %s (%s) %s",
            event.run_id,
            event.workflow,
            _sentence(event),
            extra={**_fields(event), "event": type(event).__name__, "worker": worker_id},
        )


def _sentence(event: HookEvent) -> str:
    """Return what the run did, as the rest of a sentence that starts with its id."""
    match event:
        case RunStarted():
            return "started"
        case RunResumed():
            return "resumed"
        case RunWaiting():
            return f"waits for {', '.join(event.steps[:5])}{' …' if len(event.steps) > 5 else ''}"
        case RunCompleted():
            return f"completed after {seconds(event.duration)}"
        case RunFailed():
            after = f" after {event.attempts} attempts" if event.attempts > 1 else ""
            return f"failed{after}: {_error(event)}"
        case RunCancelled():
            return f"was cancelled: {event.reason}" if event.reason else "was cancelled"
        case RunRecurred():
            return "recurred"
        case RunStuck():
            tries = "1 try" if event.tries == 1 else f"{event.tries} tries"
            return f"is stuck after {tries} without progress, retrying in {seconds(event.retry_in)}: {event.reason}"
        case StepCompleted():
            return f"completed step {event.step} in {seconds(event.duration)}"
        case StepFailed():
            return f"step {event.step} failed (attempt {event.attempt}): {_error(event)}"
        case StepRetrying():
            return (
                f"retries {event.activity} in {seconds(event.retry_in)} "
                f"(attempt {event.attempt} of {event.max_attempts} failed): {_error(event)}"
            )
        case CompensationCompleted():
            return f"compensated step {event.step} in {seconds(event.duration)}"
        case CompensationFailed():
            after = f" after {event.attempt} attempts" if event.attempt > 1 else ""
            return f"could not compensate step {event.step}: {event.activity} failed{after}: {_error(event)}"
    raise TypeError(f"no message for {event!r}")


def _error(event: RunFailed | StepFailed | StepRetrying | CompensationFailed) -> str:
    return f"{event.error_type.rpartition('.')[2]}: {event.error_message}"


def _fields(event: HookEvent) -> dict[str, object]:
    """Return the fields of an event, with durations in seconds, which every log format supports."""
    found: dict[str, object] = {}
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, timedelta):
            found[f"{field.name}_sec"] = value.total_seconds()
        else:
            found[field.name] = value
    return found


def seconds(span: timedelta | float) -> str:
    """Return a duration as text: `0.02 s`."""
    return f"{span.total_seconds() if isinstance(span, timedelta) else span:.3g} s"


def about(run: Executable) -> dict[str, object]:
    """Return the fields of a log message about a run."""
    return {"run_id": run.id, "workflow": run.workflow.name}
