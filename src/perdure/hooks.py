"""What `App(hooks=[…])` functions are called with: one event object for each thing that happened to a run.

Hooks are called after the commit and never on replay. Events carry no arguments or results.
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
    """Something that happened to a run, at a time in UTC by the database's clock."""

    run_id: str
    workflow: str
    at: datetime


Hook = Callable[[HookEvent], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class RunStarted(HookEvent):
    """A worker executes the run for the first time."""


@dataclass(frozen=True, slots=True)
class RunResumed(HookEvent):
    """A worker executes the run again, after a wait or in place of another worker."""


@dataclass(frozen=True, slots=True)
class RunWaiting(HookEvent):
    """The run waits and holds no worker. `steps` are the ids of the first hundred things that it waits for."""

    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunCompleted(HookEvent):
    """The workflow returned. `duration` counts from the start of the run, with all its waits."""

    duration: timedelta


@dataclass(frozen=True, slots=True)
class RunFailed(HookEvent):
    """The run failed, and its compensations are done.

    If an activity failed the run, `step` is its step and `attempts` says how often it was tried.
    """

    error_type: str
    error_message: str
    step: str | None
    attempts: int
    duration: timedelta


@dataclass(frozen=True, slots=True)
class RunCancelled(HookEvent):
    """The run was cancelled, and its compensations are done."""

    reason: str
    duration: timedelta


@dataclass(frozen=True, slots=True)
class RunRecurred(HookEvent):
    """The run called `recur()`: the same id begins again with new input."""


@dataclass(frozen=True, slots=True)
class RunStuck(HookEvent):
    """A try ended without progress, for the `tries`-th time in a row; the next begins after `retry_in`."""

    reason: str
    tries: int
    retry_in: timedelta


@dataclass(frozen=True, slots=True)
class StepCompleted(HookEvent):
    """An activity returned, or another recorded call such as `publish()` was committed.

    `step` is the id of the step, `activity` the name of the activity or call, `duration` that of the last attempt.
    """

    step: str
    activity: str
    attempt: int
    duration: timedelta


@dataclass(frozen=True, slots=True)
class StepFailed(HookEvent):
    """An activity failed for the last time. The workflow may catch the error, so the run need not fail."""

    step: str
    activity: str
    attempt: int
    error_type: str
    error_message: str


@dataclass(frozen=True, slots=True)
class StepRetrying(HookEvent):
    """An activity, a compensation or an `on_failure` handler failed and is tried again after `retry_in`."""

    step: str
    activity: str
    attempt: int
    max_attempts: int
    retry_in: timedelta
    error_type: str
    error_message: str


@dataclass(frozen=True, slots=True)
class CompensationCompleted(HookEvent):
    """The compensation `activity` of a step returned."""

    step: str
    activity: str
    attempt: int
    duration: timedelta


@dataclass(frozen=True, slots=True)
class CompensationFailed(HookEvent):
    """The compensation `activity` of a step failed for the last time: the step is not undone."""

    step: str
    activity: str
    attempt: int
    error_type: str
    error_message: str
