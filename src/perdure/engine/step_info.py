"""What a program gets to know of the steps of a run, and of its history."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.engine.run_info import ErrorInfo


class StepKind(StrEnum):
    """What a step does."""

    ACTIVITY = "activity"
    TIMER = "timer"
    EVENT = "event"
    CHANNEL = "channel"
    CHILD = "child"
    VALUE = "value"
    SEND = "send"
    START = "start"
    SUBSCRIPTION = "subscription"
    GROUP = "group"
    CANCEL = "cancel"
    COMPENSATION = "compensation"
    FAILURE_HANDLER = "failure_handler"


class StepStatus(StrEnum):
    """Where a step stands. `retrying`: an attempt failed and the next one is due or under way."""

    RUNNING = "running"
    RETRYING = "retrying"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A step of a run, as far as its history tells.

    The start and the input are recorded for children and for activities that have a compensation; for other steps
    `started_at` and `input` are None. An activity without a compensation that has not ended its first attempt is not
    in the history at all.
    """

    id: str
    name: str
    kind: StepKind
    status: StepStatus
    attempts: int = 1
    input: Mapping[str, Any] | None = None
    result: Any = None
    error: ErrorInfo | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A row of a run's history: the step that it is about, its kind, and its data as JSON values, or bytes."""

    id: int
    step: str
    kind: str
    at: datetime | None
    data: Any
