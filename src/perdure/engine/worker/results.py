"""Waiting for the ends of runs, for all waiters in this process.

Callers wait for the row of one run, and runs wait for their children to end. One query serves all of them, at most once
a second; the end of a run in this process is passed on at once. Rows that are wanted at the same time are read with one
statement, like the writes of a group commit.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from perdure.database.cancellation import finish
from perdure.engine.execution.group_commit import GroupCommit
from perdure.engine.worker.notifications import listen
from perdure.engine.worker.supervision import Supervised, Supervisor
from perdure.engine.worker.waiting import end_tasks
from perdure.errors import ClosedError, StorageError
from perdure.model.records import WakeUp, WorkflowInstance
from perdure.model.states import TERMINAL
from perdure.storage.contract import Storage
from perdure.storage.wakeups import RESUMABLE

ASK_SEC = 1.0
PAGE = 1000
ENDS = ("completed", "failed", "cancelled")


@dataclass(eq=False, slots=True)
class _Watch:
    """A wait until several runs have ended."""

    left: set[str]
    over: "asyncio.Future[None]"


class Results:
    """All waits for the ends of runs of one App or Client."""

    def __init__(self, storage: Storage, supervisor: Supervisor, *, alone: bool) -> None:
        self._storage = storage
        self._read: GroupCommit[str, WorkflowInstance | None] = GroupCommit(storage.get_instances)
        self._alone = alone  # there is no worker that passes notifications on
        self._waiting: dict[str, list[asyncio.Future[WorkflowInstance | None]]] = {}
        self._watched: dict[str, list[_Watch]] = {}
        self._asker: asyncio.Task[None] | None = None
        self._supervisor = supervisor
        self._closed = False
        self._hint = asyncio.Event()

    async def end_of(self, instance_id: str) -> WorkflowInstance | None:
        """Wait until a run has ended and return its row; None if no run has this id.

        Raises `ClosedError` if the App or Client closes first.
        """
        self._refuse_if_closed(instance_id)
        found = await self._read(instance_id)
        if found is None or found.status in TERMINAL:
            return found
        self._refuse_if_closed(instance_id)
        future: asyncio.Future[WorkflowInstance | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(instance_id, []).append(future)
        self._begin()
        try:
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
        self._begin()
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

    def _begin(self) -> None:
        if self._asker is None and not self._closed:
            self._asker = self._supervisor.start("results", self._ask)
            self._asker.add_done_callback(self._asked)

    def _leave(self, instance_id: str, future: "asyncio.Future[WorkflowInstance | None]") -> None:
        waiting = self._waiting.get(instance_id, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop(instance_id, None)

    def hint(self, hint: WakeUp) -> None:
        """Query soon if a notification says that a run may have ended."""
        if hint.kind in ("scan", RESUMABLE) and hint.payload.get("reason") in (None, *ENDS):
            self._hint.set()

    async def ended(self, instance_id: str) -> None:
        """Pass on that a run has ended in this process."""
        self._tell_watches(instance_id)
        if instance_id in self._waiting:
            self._tell([instance_id], [await self._read(instance_id)])

    def _tell(self, ids: Sequence[str], found: Sequence[WorkflowInstance | None]) -> None:
        for instance_id, instance in zip(ids, found, strict=True):
            if instance is None or instance.status in TERMINAL:
                self._tell_watches(instance_id)
                for future in self._waiting.pop(instance_id, []):
                    if not future.done():
                        future.set_result(instance)

    def _tell_watches(self, instance_id: str) -> None:
        for watch in self._watched.pop(instance_id, []):
            watch.left.discard(instance_id)
            if not watch.left and not watch.over.done():
                watch.over.set_result(None)

    def _asked(self, _: "asyncio.Task[None]") -> None:
        self._asker = None
        if self._waiting or self._watched:  # a wait was added while the task ended
            self._begin()

    async def _ask(self, task: Supervised) -> None:
        """Query after a notification, and without one every second; never more often than that."""
        listener = self._supervisor.start("results listener", self._listen) if self._alone else None
        try:
            while self._waiting or self._watched:
                with suppress(TimeoutError):  # no notification came: query anyway
                    async with asyncio.timeout(ASK_SEC):
                        await self._hint.wait()
                self._hint.clear()
                asked = time.monotonic()
                try:
                    await self._look()
                    task.succeeded()
                except StorageError as error:
                    task.unavailable(error)
                await asyncio.sleep(asked + ASK_SEC - time.monotonic())
        finally:
            if listener is not None:
                await end_tasks([listener])

    async def _look(self) -> None:
        ids = list({**self._waiting, **self._watched})
        for first in range(0, len(ids), PAGE):
            page = ids[first : first + PAGE]
            self._tell(page, await self._storage.get_instances(page))

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
