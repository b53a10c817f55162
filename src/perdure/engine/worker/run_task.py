"""The execution of one run under one lease: the run, its rollback and its next generations, one after the other.

A try that ends with an error leaves the stored run unchanged. If the run made progress before, or waited in memory, it
is released at once. Otherwise it is retried with back-off, or fails when it reaches the `max_tries` of its workflow.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.engine.execution.interfaces import Drained, End, Executable
from perdure.engine.execution.run import Run
from perdure.engine.execution.slots import Slot
from perdure.engine.replay.guard import is_interruption
from perdure.engine.worker.back_off import back_off, died_too_often
from perdure.engine.worker.interception import intercepted
from perdure.engine.worker.log import about
from perdure.errors import (
    CodecError,
    CommitUnknownError,
    DatabaseUnavailableError,
    LeaseLostError,
    StorageError,
    TransactionConflictError,
)
from perdure.model.records import Lease, WorkflowInstance
from perdure.storage.contract import Storage

if TYPE_CHECKING:
    from perdure.engine.worker.executor import RunExecutor

log = logging.getLogger("perdure.engine")

AT_ONCE_SEC = 0.001  # the shortest back-off
CONFLICTS_MAX = 10  # maximum number of immediate retries of a run whose transaction loses deadlocks


@dataclass(slots=True)  # not frozen, which would take four times as long
class LeasedRun:
    """A run that this worker has leased and will execute.

    - `deadline`: when the lease expires, by the local monotonic clock.
    - `slot`: the slot that was reserved for the run.
    - `tries`: the number of tries in a row without progress.
    - `after_death`: whether the last of these tries ended because its worker died.
    - `is_new`: whether this worker has just created the run, so that its history is empty.
    """

    instance: WorkflowInstance
    lease: Lease
    deadline: float
    slot: Slot
    tries: int = 0
    after_death: bool = False
    is_new: bool = False


class RunTask:
    """Executes a leased run in a task of its own."""

    def __init__(self, executor: "RunExecutor", leased: LeasedRun) -> None:
        self._executor = executor
        self._host = executor.host
        self._slot = leased.slot
        self._tries = leased.tries
        self._after_death = leased.after_death
        self.lease = leased.lease
        self.lost = False  # the lease; the task has been cancelled
        self.reported = False  # that the run has ended
        self.run: Executable  # what is executed now: the run, its rollback, or its next generation
        self.task: asyncio.Task[None]
        self._take_up(leased.instance, leased.deadline, is_new=leased.is_new)

    def _take_up(self, instance: WorkflowInstance, deadline: float, *, is_new: bool = False) -> None:
        self.run = self._executor.take_up(instance, is_new=is_new)
        self.run.deadline = deadline
        self.run.slot = self._slot
        self._executor.hold(self)

    async def execute(self) -> None:
        """Execute the run until it ends, waits or is handed over to other workers."""
        try:
            if self._executor.stopping:  # the lease was requested before
                await self._hand_back()
            elif self._after_death and (error := died_too_often(self.run, self._tries)) is not None:
                await self._back_off(error, self._tries)
            else:
                await self._try(self._tries)
        except asyncio.CancelledError:
            if self._executor.stopping:
                await self._hand_back()
            else:
                self.run.evict()
        finally:
            self._slot.rest()
            self._executor.drop(self)

    async def _try(self, tries: int) -> None:
        """Execute the run once; `tries` without progress came before."""
        try:
            end = await self._drive()
        except Drained:
            await self._hand_back()
        except LeaseLostError:
            self.run.evict()
            await self._executor.lost_leases.report(self.run)
        except (DatabaseUnavailableError, CommitUnknownError) as error:
            self._host.unavailable(error)
            log.debug(
                "run %s (%s) is paused until the database is available: %s",
                *about(self.run).values(),
                error,
                extra={**about(self.run), "reason": str(error)},
            )
            await self._hand_back()
        except BaseException as error:
            if is_interruption(error):
                raise
            await self._fail(error, tries)
        else:
            if tries:
                with suppress(StorageError):  # harmless if it fails: the row no longer applies
                    await self._host.storage.clear_stuck([self.run.id])
            await self._executor.ended(self.run, end)

    async def _drive(self) -> End:
        """Execute the run and its rollback or next generation under the same lease; retry after lost deadlocks."""
        conflicts = 0
        while True:
            try:
                if (interception := self._executor.interception) is None:
                    end = await self.run.execute(self.lease)
                else:
                    end = await intercepted(interception, self.run, self.lease)
            except TransactionConflictError as error:
                conflicts = 1 if self.run.progressed else conflicts + 1
                if conflicts > CONFLICTS_MAX:
                    raise
                log.debug(
                    "run %s (%s) is replayed at once after a conflict: %s",
                    *about(self.run).values(),
                    error,
                    extra={**about(self.run), "reason": str(error)},
                )
            else:
                if end not in (End.COMPENSATING, End.RECURRED):
                    return end
            self.run.evict()
            await self._continue()

    async def _continue(self) -> None:
        """Take up what follows under the same lease: the rollback, the next generation or the next try."""
        found = await self._host.storage.get_instance(self.run.id)
        if found is None:
            raise LeaseLostError(f"run {self.run.id!r} was deleted")
        self._take_up(found, self.run.deadline)

    async def _hand_back(self) -> None:
        """Release the lease, so that any worker can execute the run. A stuck run without progress stays stuck."""
        self.run.evict()
        if self._tries == 0 or self.run.progressed or not await self._stay_stuck():
            await release(self._host.storage, self.lease)

    async def _stay_stuck(self) -> bool:
        """Release the lease but keep the count of tries and their reason; return False if the run is not stuck."""
        try:
            (stuck,) = await self._host.storage.get_stuck([self.run.id])
            if stuck is not None:
                await self._host.storage.back_off(self.lease, self._tries, stuck.reason, AT_ONCE_SEC)
        except StorageError as error:
            log.debug(
                "run %s (%s) could not be kept as stuck: %s",
                *about(self.run).values(),
                error,
                extra={**about(self.run), "reason": str(error)},
            )
            return False
        return stuck is not None

    async def _fail(self, error: BaseException, tries: int) -> None:
        """End a try with an error that says nothing about the lease or the database."""
        self.run.evict()
        if await self._is_lease_lost():
            await self._executor.lost_leases.report(self.run)  # unexpected rows of another worker or a cancellation
            self._host.wake()
        elif self.run.resumed:
            await release(self._host.storage, self.lease)  # the cached run may not match its history: replay it
        else:
            await self._back_off(error, 1 if self.run.progressed else tries + 1)

    async def _is_lease_lost(self) -> bool:
        """Return whether the worker has lost the lease; False if the database does not answer."""
        try:
            row = await self._host.storage.get_instance(self.lease.instance_id)
        except StorageError as error:
            log.debug(
                "could not read who holds the lease on run %s (%s), so it counts as held: %s: %s",
                *about(self.run).values(),
                type(error).__name__,
                error,
                extra={**about(self.run), "reason": str(error)},
            )
            return False
        return row is None or (row.locked_by, row.lock_token) != (self.lease.worker_id, self.lease.token)

    async def _back_off(self, error: BaseException, tries: int) -> None:
        """Back off after so many tries without progress; if they are the workflow's `max_tries`, fail the run."""
        limit = None if isinstance(error, CodecError) else self.run.workflow.max_tries  # another worker may decode it
        if limit is None or tries < limit or not isinstance(self.run, Run):
            await back_off(self._host, self.run, self.lease, error, tries)
            return
        try:
            await self.run.give_up(error, self.lease)
            await self._continue()
        except StorageError as refused:
            log.debug(
                "run %s (%s) reached its max_tries but could not be failed, retrying: %s",
                *about(self.run).values(),
                refused,
            )
            await release(self._host.storage, self.lease)
            return
        await self._try(0)


async def release(storage: Storage, lease: Lease) -> None:
    """Release a lease; if the database does not answer, it expires."""
    try:
        await storage.release_lock(lease.instance_id, lease.worker_id, lease=lease)
    except StorageError as error:
        log.debug(
            "worker %s could not release its lease on run %s, so other workers wait until it expires: %s: %s",
            lease.worker_id,
            lease.instance_id,
            type(error).__name__,
            error,
            extra={"run_id": lease.instance_id, "worker": lease.worker_id, "reason": str(error)},
        )
