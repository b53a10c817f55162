"""The public view of a run: plain values instead of storage records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.model.headers import none
from perdure.model.states import WorkflowStatus


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as text: the path of its class, its message, and its traceback if one was recorded."""

    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True, slots=True)
class StuckInfo:
    """Why a run is stuck, since when, and when it is retried next.

    `next_retry_at` is None if the run is not in back-off, so any worker may retry it now.
    """

    reason: str
    since: datetime
    next_retry_at: datetime | None = None


class WaitKind(StrEnum):
    """The kind of thing that a run waits for."""

    START = "start"
    TIMER = "timer"
    RETRY = "retry"
    EVENT = "event"
    CHANNEL = "channel"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class WaitInfo:
    """Something that a run waits for.

    - `kind`: what kind of wait it is.
    - `name`: the event type, the channel, or the id of the step of a timer, child or retry.
    - `until`: when the timer fires or the wait times out; None if the run waits forever.
    """

    kind: WaitKind
    name: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A snapshot of a run.

    - `id`, `workflow`, `status`: the run's id, the name of its workflow and its status.
    - `input`: the parameters and their values. If the workflow is defined in this process, `input` and `result` are
      decoded by its type hints; otherwise they are plain JSON values.
    - `result`: the result of a completed run; `error`: the error of a failed run.
    - `state`: the value last passed to `set_state()`.
    - `started_at`, `updated_at`, `finished_at`: times in UTC; `finished_at` is None until the run has ended.
    - `deadline`: when `options(timeout=)` cancels the run.
    - `parent`, `children`: the ids of the run that called this one and of the runs that this one called.
    - `previous`: the id under which the history before the last `recur()` is kept.
    - `waiting_for`: what a waiting run waits for.
    - `worker`, `lease_expires_at`: the worker that holds the run's lease, and when the lease expires.
    - `attempts`: the number of tries in a row that ended without progress.
    - `stuck`: why the run is stuck; None if it is not.
    - `headers`: the texts that travel with the run.

    `state` and `children` are read by `RunHandle.info()` only; in the results of a query they are None.
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
    headers: Mapping[str, str] = field(default_factory=none)
