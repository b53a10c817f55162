"""The public view of a run's steps and history."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.engine.api.run_info import ErrorInfo


class StepKind(StrEnum):
    """The kind of a step."""

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
    """The status of a step.

    `retrying` means that an attempt failed and the next one is scheduled or running. `cancelled` means that the run
    ended without the step's outcome, because the body or its cancellation had abandoned the step.
    """

    RUNNING = "running"
    RETRYING = "retrying"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A step of a run, as its history records it.

    - `id`, `name`, `kind`, `status`: the step's id, the name of the activity or call, its kind and its status.
    - `attempts`: the number of attempts so far.
    - `input`: the arguments; `result`: the result of a completed step; `error`: the error of the last failed attempt.
    - `started_at`, `finished_at`: times in UTC.
    - `child`: the id of the run that a step of the kind `child` called.

    `started_at` and `input` are recorded only for children and for activities with a compensation, and are None for
    other steps. An activity without a compensation appears in the history when its first attempt has ended.
    """

    id: str
    name: str
    kind: StepKind
    status: StepStatus
    attempts: int
    input: Mapping[str, Any] | None = None
    result: Any = None
    error: ErrorInfo | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    child: str | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry of a run's history.

    - `id`: the position; later entries have greater ids.
    - `step`: the id of the step.
    - `kind`: the type of the entry, such as `"ActivityCompleted"`.
    - `at`: when the entry was recorded.
    - `data`: plain JSON values, or bytes.
    """

    id: int
    step: str
    kind: str
    at: datetime | None
    data: Any
