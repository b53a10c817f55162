"""What a program gets to know of a run: plain values, without the storage's records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.model.states import WorkflowStatus


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as text: the path of its class, its message, and its traceback where one was recorded."""

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True, slots=True)
class StuckInfo:
    """Why a run makes no progress, and since when. `next_retry_at` is None if any worker may take it already."""

    reason: str
    since: datetime
    next_retry_at: datetime | None = None


class WaitKind(StrEnum):
    """What a run can wait for."""

    START = "start"
    TIMER = "timer"
    RETRY = "retry"
    EVENT = "event"
    CHANNEL = "channel"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class WaitInfo:
    """Something that a run waits for: the type of an event, a channel, the step of a timer, child or retry.

    `until` is when the timer fires or the wait times out; None if it waits forever.
    """

    kind: WaitKind
    name: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as it stood when it was read.

    `input` maps parameters to values. If the workflow is defined in this process, `input` and `result` are decoded by
    its type hints, and else they are plain JSON values. `attempts` counts the tries in a row that ended without
    progress. `state` and `children` are read by `RunHandle.info()` only: in the results of a query they are None.
    """

    id: str
    workflow: str
    status: WorkflowStatus
    input: Mapping[str, Any]
    result: Any
    error: ErrorInfo | None
    state: Any
    started_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    deadline: datetime | None = None
    parent: str | None = None
    children: tuple[str, ...] | None = None
    previous: str | None = None
    waiting_for: tuple[WaitInfo, ...] = field(default=())
    worker: str | None = None
    lease_expires_at: datetime | None = None
    attempts: int = 0
    stuck: StuckInfo | None = None
