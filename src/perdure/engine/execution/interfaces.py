"""The interfaces between a worker and what it executes: runs and their rollbacks."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from perdure.engine.execution.clock import Clock
from perdure.engine.execution.group_commit import GroupCommit
from perdure.engine.execution.journal import Journals
from perdure.engine.replay.context import ActivityInfo
from perdure.engine.replay.definitions import ActivityDefinition, WorkflowDefinition
from perdure.engine.replay.steps import Effect
from perdure.errors import LeaseLostError
from perdure.hooks import HookEvent
from perdure.model.blank import blank
from perdure.model.headers import Headers
from perdure.model.records import Lease, Suspension, Wait, WorkflowInstance
from perdure.storage.contract import Storage

if TYPE_CHECKING:
    from perdure.engine.execution.slots import Slot

STUBBORN_SEC = 10.0  # how long a cancelled activity may take to end


class Drained(Exception):
    """Raised when the worker drains and a run would start something new; the run is released for other workers."""


class End(Enum):
    """How the execution of a run under a lease ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPENSATING = "compensating"
    RECURRED = "recurred"
    CANCELLING = "cancelling"
    SUSPENDED = "suspended"


@dataclass(slots=True)
class Attempt:
    """An attempt of an activity that the worker is to execute.

    Its code runs in the task that executes the attempt, and may cancel that task itself, which fails the attempt. So
    whoever cancels the task sets `stopped` before.
    """

    activity: ActivityDefinition
    payload: bytes
    info: ActivityInfo
    check: Callable[[], None] = lambda: None  # called right before the code; raises if the lease has expired
    stopped: bool = False


@dataclass(slots=True)
class Done:
    """The outcome of an attempt: a result as JSON and decoded, or an error, and what to commit with the result."""

    result: bytes = b"null"
    value: object = None
    error: BaseException | None = None
    effects: tuple[Effect, ...] = ()
    seconds: float = 0.0  # duration of the code


Record = Callable[[Storage, bytes, list[Effect]], Awaitable[None]]


class Executable(Protocol):
    """What a worker executes: a run, or the rollback of a run."""

    id: str
    workflow: WorkflowDefinition
    generation: str | None
    headers: Headers
    deadline: float  # of the lease, on the monotonic clock
    resumed: bool
    host: "Host"
    slot: "Slot"  # held while code may execute
    ending: bool  # a commit that releases the lease is in progress, which may explain a missing lease

    @property
    def progressed(self) -> bool:
        """Return whether anything was recorded under the lease."""

    @property
    def at_work(self) -> bool:
        """Return whether code may execute now or very soon."""

    def about(self) -> tuple[str, str, datetime]:
        """Return the first fields of every hook event."""

    async def execute(self, lease: Lease) -> End:
        """Execute until it ends or waits. An error ends this try."""

    def drain(self) -> None:
        """Start nothing new."""

    def hint(self) -> None:
        """Poll for messages and timers, because there may be one."""

    def evict(self) -> None:
        """Release what is in memory."""


class Host(Protocol):
    """What a run needs of its worker."""

    storage: Storage
    clock: Clock
    journals: Journals
    suspensions: GroupCommit[tuple[Lease, list[Wait]], Suspension]

    def now(self) -> datetime:
        """Return an estimate of the database's clock."""

    def wake(self) -> None:
        """Look for work soon, because something was written that may have created some."""

    async def watch_ends(self, ids: Sequence[str]) -> tuple["asyncio.Future[None]", list[WorkflowInstance]]:
        """Return a future that is done once all these runs have ended, and the rows of those that have not.

        Cancel the future to stop watching.
        """

    def transact(self, attempt: Attempt, record: "Record") -> Coroutine[Any, Any, Done]:
        """Execute an attempt in a transaction that also records its result."""

    def execute(self, attempt: Attempt) -> Coroutine[Any, Any, Done]:
        """Execute an attempt in the calling task and return its result or error.

        The task and its context belong to the attempt alone. Only a lost lease and a cancellation from outside are
        raised.
        """

    def observes(self, kind: type[HookEvent]) -> bool:
        """Return whether events of this kind go to a hook or to the log; frequent ones are not made for nothing."""

    def happened(self, event: HookEvent) -> None:
        """Log an event, which must be durable, and call the hooks."""


_blank_info = blank(ActivityInfo)


def activity_info(run: Executable, name: str, step: str, attempt: int, token: int) -> ActivityInfo:
    """Return what an attempt of an activity can ask about itself; its idempotency key is the same in every attempt."""
    info = _blank_info()
    info.workflow_id, info.workflow_name, info.activity_name = run.id, run.workflow.name, name
    info.step, info.attempt, info.fence = step, attempt, token
    info.headers = run.headers
    info.idempotency_key = f"{run.id}:{run.generation or ''}:{step}"
    info.__class__ = ActivityInfo
    return info  # type: ignore[no-any-return]


def check_deadline(run: Executable) -> None:
    """Raise `LeaseLostError` if the lease has expired by the local clock, so that no new code starts."""
    if run.host.clock.steady() >= run.deadline:
        raise LeaseLostError(f"the lease of run {run.id!r} has expired by this worker's clock")


async def put_down(tasks: "Collection[asyncio.Task[Any]]", threads: "Collection[asyncio.Task[Any]]") -> None:
    """Cancel tasks and wait until they have ended: for coroutines up to a limit, for threads without one.

    A cancellation of this call ends the wait, because the worker stops.
    """
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    try:
        _, left = await asyncio.wait(tasks, timeout=STUBBORN_SEC)
        if still := left.intersection(threads):
            await asyncio.wait(still)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
