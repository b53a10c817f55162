"""The events that `App(hooks=[…])` functions receive, one object per event.

A hook is called after the commit and never on replay; a process that dies right after a commit does not call it. Errors
in hooks are logged and ignored. Events contain no arguments or results.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

__all__ = [
    "CompensationCompleted",
    "CompensationFailed",
    "Hook",
    "HookEvent",
    "RunCancelled",
    "RunCompleted",
    "RunFailed",
    "RunRecurred",
    "RunResumed",
    "RunStarted",
    "RunStuck",
    "RunWaiting",
    "StepCompleted",
    "StepFailed",
    "StepRetrying",
]


@dataclass(frozen=True, slots=True)
class HookEvent:
    """Base class of all hook events.

    - `run_id`: the id of the run.
    - `workflow`: the name of its workflow.
    - `at`: when the event happened, in UTC by the database's clock.
    """

    run_id: str
    workflow: str
    at: datetime


Hook = Callable[[HookEvent], Awaitable[None] | None]
"""A function of `App(hooks=)`, async or not. It gets every event and ignores those that it does not know."""


@dataclass(frozen=True, slots=True)
class RunStarted(HookEvent):
    """A worker started to execute the run for the first time."""


@dataclass(frozen=True, slots=True)
class RunResumed(HookEvent):
    """A worker resumed the run, after a wait or after it took the run over from another worker."""


@dataclass(frozen=True, slots=True)
class RunWaiting(HookEvent):
    """The run waits and holds no worker. `steps` has the ids of at most 100 of the steps that it waits for."""

    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunCompleted(HookEvent):
    """The workflow returned. `duration` is the time since the start of the run, waits included."""

    duration: timedelta


@dataclass(frozen=True, slots=True)
class RunFailed(HookEvent):
    """The run failed, and its compensations have ended.

    - `error_type`, `error_message`: the error of the run, as text.
    - `step`: the id of the step whose failure failed the run; None if no activity did.
    - `attempts`: the number of attempts of that step.
    - `duration`: the time since the start of the run, waits included.
    """

    error_type: str
    error_message: str
    step: str | None
    attempts: int
    duration: timedelta


@dataclass(frozen=True, slots=True)
class RunCancelled(HookEvent):
    """The run was cancelled, and its compensations have ended.

    `reason` is the text given to `cancel()`; `duration` is the time since the start of the run, waits included.
    """

    reason: str
    duration: timedelta


@dataclass(frozen=True, slots=True)
class RunRecurred(HookEvent):
    """The run called `recur()`: it starts again with the same id, new input and an empty history."""


@dataclass(frozen=True, slots=True)
class RunStuck(HookEvent):
    """The run cannot make progress and is retried with back-off.

    `reason` says why, `tries` counts the tries in a row without progress, and the next try starts after `retry_in`.
    """

    reason: str
    tries: int
    retry_in: timedelta


@dataclass(frozen=True, slots=True)
class StepCompleted(HookEvent):
    """An activity returned, or another recorded call such as `publish()` was committed.

    - `step`: the id of the step.
    - `activity`: the name of the activity or call.
    - `attempt`: the number of the attempt that succeeded, from 1.
    - `duration`: the duration of that attempt.
    """

    step: str
    activity: str
    attempt: int
    duration: timedelta


@dataclass(frozen=True, slots=True)
class StepFailed(HookEvent):
    """The last attempt of an activity failed. The workflow may catch the error, so the run need not fail."""

    step: str
    activity: str
    attempt: int
    error_type: str
    error_message: str


@dataclass(frozen=True, slots=True)
class StepRetrying(HookEvent):
    """An attempt of an activity, compensation or `on_failure` handler failed; the next starts after `retry_in`."""

    step: str
    activity: str
    attempt: int
    max_attempts: int
    retry_in: timedelta
    error_type: str
    error_message: str


@dataclass(frozen=True, slots=True)
class CompensationCompleted(HookEvent):
    """The compensation of a step returned. `activity` is the name of the compensation."""

    step: str
    activity: str
    attempt: int
    duration: timedelta


@dataclass(frozen=True, slots=True)
class CompensationFailed(HookEvent):
    """The last attempt of a step's compensation failed, so the step stays uncompensated.

    `activity` is the name of the compensation.
    """

    step: str
    activity: str
    attempt: int
    error_type: str
    error_message: str
