"""Waiting for the ends of runs, for all waiters in this process.

Callers wait for the outcome of one run, and runs wait for their children to end. The worker of this process reports the
ends of the runs that it executes, with their outputs, so nothing is read for them. For the other runs one query serves
all waiters: after a notification, and once a second, because notifications can be lost. A notification that names a run
leads to a query for that run at once, or to none if no caller waits for it. Those that name none are less and less
likely to matter while the queries find nothing, so the pause between these queries grows. Rows that are wanted at the
same time are read with one statement, like the writes of a group commit.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from perdure.database.cancellation import finish
from perdure.database.pacing import Pace
from perdure.engine.execution.group_commit import GroupCommit
from perdure.engine.worker.notifications import listen
from perdure.engine.worker.supervision import Supervised, Supervisor
from perdure.engine.worker.waiting import end_tasks
from perdure.errors import ClosedError, StorageError
from perdure.model.records import WakeUp, WorkflowInstance
from perdure.model.states import TERMINAL, WorkflowStatus
from perdure.storage.contract import Storage
from perdure.storage.wakeups import RESUMABLE, SEVERAL

ASK_SEC = 1.0  # poll interval without a notification
HINTED_MIN_SEC, HINTED_MAX_SEC = 0.001, 0.25  # pause between two queries that follow notifications
EACH_SEC = 0.00005  # minimum of this pause for each run of the query: a few times what its row costs
LISTEN_SEC = 60.0  # how long a client listens after its last wait, because opening a connection takes long
PAGE = 1000
SCAN = "scan"
ENDS = ("completed", "failed", "cancelled")
COALESCED = "coalesced"


@dataclass(slots=True)
class Ended:
    """How a run ended. A completed run has an output; the name of its workflow may be unknown."""

    status: WorkflowStatus
    output_data: bytes | None = None
    workflow_name: str = ""


Waiter = asyncio.Future[Ended | None]


@dataclass(eq=False, slots=True)
class _Watch:
    """A wait until several runs have ended."""

    left: set[str]
    over: "asyncio.Future[None]"


class Results:
    """All waits for the ends of runs of one App or Client.

    `is_local` says whether the worker of this process executes a run: then it will call `ended` or `released`.
    """

    def __init__(self, storage: Storage, supervisor: Supervisor, *, alone: bool) -> None:
        self._storage = storage
        self._read: GroupCommit[str, WorkflowInstance | None] = GroupCommit(storage.get_instances)
        self._alone = alone  # there is no worker that passes notifications on
        self.is_local: Callable[[str], bool] = lambda instance_id: False
        self._waiting: dict[str, list[Waiter]] = {}
        self._watched: dict[str, list[_Watch]] = {}
        self._asker: asyncio.Task[None] | None = None
        self._supervisor = supervisor
        self._closed = False
        self._changed = asyncio.Event()  # set if a query may be due
        self._named: set[str] = set()  # runs to query at once
        self._hinted = False  # a notification may concern any run
        self._pace = Pace(HINTED_MIN_SEC, HINTED_MAX_SEC)
        self._looked_at = 0.0  # when the last query after a notification ended, by the monotonic clock
        self._polled_at = 0.0  # when the last query for all runs began
        self._asked = 0  # the number of runs in that query
        self._idle = False  # there is no wait, so no query will be due

    async def end_of(self, instance_id: str) -> Ended | None:
        """Wait until a run has ended and return its outcome; None if no run has this id.

        Raises `ClosedError` if the App or Client closes first.
        """
        self._refuse_if_closed(instance_id)
        future: Waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(instance_id, []).append(future)  # before the row is read, so that no end is missed
        local = self.is_local(instance_id)
        self._begin(local=local)
        try:
            if not local:
                self._tell([instance_id], [await self._read(instance_id)])
            return await future
        finally:
            self._leave(instance_id, future)

    async def watch(self, ids: Sequence[str]) -> tuple["asyncio.Future[None]", list[WorkflowInstance]]:
        """Return a future that is done once all these runs have ended or are deleted, and the rows of the others.

        Cancel the future to stop watching.
        """
        watch = _Watch(set(ids), asyncio.get_running_loop().create_future())
        for instance_id in watch.left:  # before the rows are read, so that no end is missed
            self._watched.setdefault(instance_id, []).append(watch)
        watch.over.add_done_callback(lambda _: self._unwatch(watch))
        self._begin(local=False)
        going: list[WorkflowInstance] = []
        try:
            for first in range(0, len(ids), PAGE):
                page = ids[first : first + PAGE]
                found = await self._storage.get_instances(page)
                self._tell(page, found)
                going += [row for row in found if row is not None and row.status not in TERMINAL]
        except BaseException:
            watch.over.cancel()
            raise
        return watch.over, going

    def _unwatch(self, watch: "_Watch") -> None:
        for instance_id in watch.left:
            watches = self._watched.get(instance_id, [])
            if watch in watches:
                watches.remove(watch)
            if not watches:
                self._watched.pop(instance_id, None)

    def _begin(self, *, local: bool) -> None:
        """Let queries begin, because there is a new wait, for runs that this process executes or for others."""
        if not local:
            self._pace.quicken()
        if self._idle or (self._hinted and not local):
            self._changed.set()
        if self._asker is None and not self._closed:
            self._asker = self._supervisor.start("results", self._ask)

    def _leave(self, instance_id: str, future: Waiter) -> None:
        waiting = self._waiting.get(instance_id, [])
        if future in waiting:
            waiting.remove(future)
        if future.done() and not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not warn if reading the row failed as well
        if not waiting:
            self._waiting.pop(instance_id, None)

    def hint(self, hint: WakeUp) -> None:
        """Query soon if a notification says that a run may have ended for which a caller waits."""
        if not (self._waiting or self._watched) or hint.kind not in (SCAN, RESUMABLE):
            return
        payload = hint.payload
        reason, named = payload.get("reason"), payload.get("instance_id")
        if hint.kind == RESUMABLE and reason in ENDS and SEVERAL not in payload and isinstance(named, str):
            if not self.is_local(named):
                self.released(named)
        elif not self._hinted and (hint.kind == SCAN or reason in (COALESCED, *ENDS)):
            self._hinted = True
            self._changed.set()

    def released(self, instance_id: str) -> None:
        """Query a run at once if a caller waits for it, because it may have ended."""
        if instance_id in self._waiting or instance_id in self._watched:
            self._named.add(instance_id)
            self._pace.quicken()
            self._changed.set()

    async def ended(self, instance_id: str, output_data: bytes | None = None) -> None:
        """Pass on that a run has ended in this process, with this output if it is known."""
        self._tell_watches(instance_id)
        if instance_id not in self._waiting:
            return
        if output_data is not None:
            self._tell_waiters(instance_id, Ended(WorkflowStatus.COMPLETED, output_data))
        else:
            self._tell([instance_id], [await self._read(instance_id)])

    def _tell(self, ids: Sequence[str], found: Sequence[WorkflowInstance | None]) -> bool:
        """Pass on which of these runs have ended or are deleted; return whether there are any."""
        told = False
        for instance_id, row in zip(ids, found, strict=True):
            if row is None or row.status in TERMINAL:
                told = True
                self._tell_watches(instance_id)
                ended = None if row is None else Ended(row.status, row.output_data, row.workflow_name)
                self._tell_waiters(instance_id, ended)
        return told

    def _tell_waiters(self, instance_id: str, ended: Ended | None) -> None:
        for future in self._waiting.pop(instance_id, []):
            if not future.done():
                future.set_result(ended)

    def _tell_watches(self, instance_id: str) -> None:
        for watch in self._watched.pop(instance_id, []):
            watch.left.discard(instance_id)
            if not watch.left and not watch.over.done():
                watch.over.set_result(None)

    # Querying.

    async def _ask(self, task: Supervised) -> None:
        """Query for the runs that callers wait for, whenever that is due; never return."""
        listener: asyncio.Task[None] | None = None
        self._polled_at = time.monotonic()
        try:
            while True:
                if not (self._waiting or self._watched):
                    self._named.clear()
                    task.rest()
                    self._idle = True
                    if not await self._change(LISTEN_SEC if listener is not None else None) and listener is not None:
                        await end_tasks([listener])
                        listener = None
                    self._idle, self._polled_at = False, time.monotonic()
                    continue
                if self._alone and listener is None:
                    listener = self._supervisor.start("results listener", self._listen)
                if (delay := self._delay()) > 0:
                    await self._change(delay)
                    continue
                try:
                    await self._look()
                    task.succeeded()
                except StorageError as error:
                    task.unavailable(error)
        finally:
            if listener is not None:
                await end_tasks([listener])

    async def _change(self, seconds: float | None) -> bool:
        """Wait until a query may be due, at most so long; return whether there was a reason."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._changed.wait()
        return False

    def _delay(self) -> float:
        """Return the seconds until the next query is due."""
        if self._named:
            return 0.0
        due = self._polled_at + ASK_SEC
        if self._hinted:
            due = min(due, self._looked_at + max(self._pace.pause(), EACH_SEC * self._asked))
        return due - time.monotonic()

    async def _look(self) -> None:
        """Query for the named runs, or for all that may have ended, and tell those who wait for them."""
        began, named = time.monotonic(), self._named
        if named:
            self._named = set()
            await self._query([each for each in named if each in self._waiting or each in self._watched])
            return
        ids = list({**self._waiting, **self._watched})
        polled, self._hinted = began >= self._polled_at + ASK_SEC, False
        foreign = ids if polled else [each for each in ids if not self.is_local(each)]
        if len(foreign) == len(ids):
            self._polled_at = began
        if await self._query(foreign):
            self._pace.quicken()
        self._looked_at, self._asked = time.monotonic(), len(foreign)

    async def _query(self, ids: Sequence[str]) -> bool:
        """Query for these runs; return whether any has ended."""
        told = False
        for first in range(0, len(ids), PAGE):
            page = ids[first : first + PAGE]
            told |= self._tell(page, await self._storage.get_instances(page))
        return told

    async def _listen(self, task: Supervised) -> None:
        await listen(self._storage, task, self.hint)

    def _refuse_if_closed(self, instance_id: str) -> None:
        if self._closed:
            raise _closed(instance_id)

    async def close(self) -> None:
        """Raise `ClosedError` in all callers that still wait."""
        self._closed = True
        for instance_id, futures in list(self._waiting.items()):
            for future in futures:
                if not future.done():
                    future.set_exception(_closed(instance_id))
        await finish(self._end())

    async def _end(self) -> None:
        if self._asker is not None:
            await end_tasks([self._asker])
        await self._read.ended()


def _closed(instance_id: str) -> ClosedError:
    return ClosedError(
        f"the App or Client was closed while result() waited for run {instance_id!r}, which is not affected: get its "
        "result from an App or Client that is open"
    )
