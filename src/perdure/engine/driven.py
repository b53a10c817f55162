"""What a worker drives, and what it lends to whoever is driven."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from perdure.engine.ambient import ActivityInfo
from perdure.engine.body import Effect
from perdure.engine.clock import steady
from perdure.engine.codec import encode
from perdure.engine.definitions import Activity, Workflow
from perdure.engine.journal import Entry, Shared
from perdure.errors import LeaseLostError
from perdure.hooks import HookEvent
from perdure.model.limits import PAYLOAD_MAX
from perdure.model.records import CompensationEntry, HistoryEvent, Lease, Suspension, WorkflowInstance
from perdure.storage.contract import Storage, Wait

if TYPE_CHECKING:
    from perdure.engine.slots import Slot

PAGE = 1000
RECORDED = "recorded"  # in place of an input and a result that are too large together: both are rows of the history
STUBBORN_SEC = 10.0  # how long an activity that is cancelled may take to end


class Drained(Exception):
    """The worker stops, and the run would begin something new: it is handed over as it stands."""


class End(Enum):
    """How driving a run ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPENSATING = "compensating"
    RECURRED = "recurred"
    CANCELLING = "cancelling"
    SUSPENDED = "suspended"


@dataclass(slots=True)
class Attempt:
    """An activity's code to be run by the host."""

    activity: Activity[..., Any]
    payload: bytes
    info: ActivityInfo
    check: Callable[[], None] = lambda: None  # called right before the code: raises if it must not begin any more


@dataclass(slots=True)
class Done:
    """What came of an attempt: a result as JSON, or an error; and what its code sent, to be committed with it."""

    result: bytes = b"null"
    error: BaseException | None = None
    effects: tuple[Effect, ...] = ()
    seconds: float = 0.0  # that the code took


Record = Callable[[Storage, bytes, list[Effect]], Awaitable[None]]


class Driven(Protocol):
    """What a worker drives: a run, or its rollback."""

    id: str
    workflow: Workflow[..., Any]
    generation: str | None
    deadline: float  # of the lease, on the monotonic clock
    progressed: bool
    resumed: bool
    slot: "Slot"  # held while code may execute
    ending: bool  # a commit that gives the lease back is under way: if it is gone, that may be why

    @property
    def at_work(self) -> bool:
        """Whether code may execute now or in a moment."""

    async def drive(self, lease: Lease) -> End:
        """Go on until it can go no further. Whatever is raised ends the try."""

    def drain(self) -> None:
        """Begin nothing new."""

    def hint(self) -> None:
        """There may be something that is waited for."""

    def evict(self) -> None:
        """Let go of what is in memory."""


class Host(Protocol):
    """What a run needs of its worker."""

    storage: Storage
    records: Shared[Entry, int]
    completions: "Shared[tuple[Lease, bytes], None]"
    suspensions: "Shared[tuple[Lease, list[Wait]], Suspension]"

    def now(self) -> datetime:
        """The database's clock, as far as it is known here."""

    def wake(self) -> None:
        """Something was written that there may be work because of."""

    async def watch_ends(self, ids: Sequence[str]) -> tuple["asyncio.Future[None]", list[WorkflowInstance]]:
        """A future that is done once all these runs have ended, and the rows of those that have not.

        Cancel the future to stop watching.
        """

    def transact(self, attempt: Attempt, record: "Record") -> Coroutine[Any, Any, Done]:
        """Run an attempt's code in a transaction that ends with its record."""

    def execute(self, attempt: Attempt) -> Coroutine[Any, Any, Done]:
        """Run an attempt's code; an error is part of what it gives, only a cancellation is raised."""

    def happened(self, event: HookEvent) -> None:
        """Log what is durable by now, and call the hooks with it."""


def check_deadline(driven: Driven) -> None:
    """Raise if another worker may have taken it over: by then nothing new is begun."""
    if steady() >= driven.deadline:
        raise LeaseLostError(f"the lease on {driven.id} is over by this worker's clock")


async def put_down(tasks: "Collection[asyncio.Task[Any]]", threads: "Collection[asyncio.Task[Any]]") -> None:
    """End what is under way: a coroutine that will not is left alone after a while, a thread is waited for.

    Who cancels this does not wait: the worker stops, and what has not ended by now is left behind.
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


async def rows(storage: Storage, instance_id: str, after_id: int = 0) -> AsyncIterator[HistoryEvent]:
    """The rows of a history after an id, a page in memory at a time."""
    more = True
    while more:
        page, more = await storage.get_history_paginated(instance_id, after_id, PAGE)
        for event in page:
            after_id = event.id
            yield event


def undoing(instance_id: str, step: str, name: str, given: bytes, result: bytes) -> CompensationEntry:
    """What is stored with the outcome of an activity that can be undone; see `RECORDED`."""
    args = b'{"input": ' + given + b', "result": ' + result + b"}"
    if len(args) > PAYLOAD_MAX:
        args = encode({RECORDED: True})
    return CompensationEntry(instance_id, step, name, args)
