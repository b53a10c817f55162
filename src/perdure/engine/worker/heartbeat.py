"""The heartbeat: renews the leases of a worker's runs, in its own thread and with its own connection.

So a body or an activity that blocks the worker's loop loses no lease. One statement renews all leases. Each run has a
deadline by the local monotonic clock, counted from the time before the renewal was sent. After the deadline no new code
starts, because another worker may have leased the run.

A test has a clock that belongs to its event loop, and moves it. There the heartbeat is a task of that loop.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress

from perdure.engine.execution.clock import Clock, SystemClock
from perdure.engine.worker.held_leases import Held, HeldLeases
from perdure.engine.worker.supervision import Supervised
from perdure.errors import StorageError
from perdure.model.records import Lease
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

PAGE = 1000
STOP_SEC = 5.0  # how long the worker waits for the thread to end
CALM_SEC = 0.3  # minimum time between two renewals


class Heartbeat:
    """Renews leases after a third of their duration, and calls `lost` for those that are lost."""

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Storage]],
        worker_id: str,
        lease_sec: float,
        lost: Callable[[Lease], None],
        supervised: Supervised | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._connect = connect
        self._worker_id = worker_id
        self._lease_sec = lease_sec
        self._lost = lost
        self._supervised = supervised or Supervised("heartbeat")
        self._clock = clock or SystemClock()
        self._steady = self._clock.steady
        self._leases = HeldLeases(self._steady)
        self._whole_at = self._steady() + lease_sec / 3  # when to renew all leases
        self._nudged = False
        self._stop = threading.Event()
        self._due = threading.Event()  # renew now: a lease may be lost
        self._task: asyncio.Task[None] | None = None  # instead of the thread
        self._due_here: asyncio.Event  # instead of `_due`

    def start(self) -> None:
        """Start the thread, or the task."""
        self._host = asyncio.get_running_loop()
        self._ended, self._due_here = asyncio.Event(), asyncio.Event()
        if not self._clock.is_real:
            self._task = asyncio.create_task(self._main_here(), name="perdure heartbeat")
            return
        threading.Thread(target=self._main, name="perdure-heartbeat", daemon=True).start()

    async def stop(self) -> None:
        """Stop the thread, which marks the worker as gone; don't wait long for an unavailable database."""
        self._stop.set()
        self._due.set()
        self._due_here.set()
        try:
            async with asyncio.timeout(STOP_SEC):
                await self._ended.wait()
        except TimeoutError:
            log.warning(
                "the heartbeat of worker %s did not end within %g s, and the worker stops without it",
                self._worker_id,
                STOP_SEC,
                extra={"worker": self._worker_id},
            )

    def nudge(self) -> None:
        """Check the leases soon, because a run of this worker may have been cancelled."""
        if self._leases:
            (self._due if self._task is None else self._due_here).set()

    def hold(self, lease: Lease, held: Held) -> None:
        """Renew this lease from now on."""
        self._leases.hold(lease, held)

    def drop(self, lease: Lease) -> None:
        """Stop renewing this lease."""
        self._leases.drop(lease)

    async def outlast(self, seconds: float, storage: Storage) -> bool:
        """Renew all leases for so much longer, because the clock of a test may jump; return whether there are any."""
        held, until = self._leases.all(), self._steady() + seconds + self._lease_sec
        for first in range(0, len(held), PAGE):
            page = held[first : first + PAGE]
            renewed = await storage.refresh_locks([lease for lease, _ in page], seconds + self._lease_sec)
            for lost in self._leases.renewed(page, renewed, until):
                self._lose(lost)
        return bool(held)

    async def _main_here(self) -> None:
        try:
            await self._beat()
        finally:
            self._supervised.end()
            self._ended.set()

    def _main(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    asyncio.run(self._beat())
                except StorageError as error:
                    self._supervised.unavailable(error)
                    self._lose_overdue()
                    self._stop.wait(1)
                except BaseException as error:
                    pause = self._supervised.failed(error)
                    self._lose_overdue()
                    self._stop.wait(min(pause, self._lease_sec / 3))
        finally:
            self._supervised.end()
            with suppress(RuntimeError):  # the host's loop is closed
                self._host.call_soon_threadsafe(self._ended.set)

    async def _beat(self) -> None:
        rested_until = 0.0
        async with self._connect() as storage:
            while not await self._rest():
                try:
                    await self._renew(storage)
                    if not self._nudged and (self._leases or time.monotonic() >= rested_until):
                        await storage.beat_worker(self._worker_id)
                        rested_until = time.monotonic() + self._lease_sec  # an idle worker reports less often
                    self._supervised.succeeded()
                except StorageError as error:
                    self._supervised.unavailable(error)
                    self._lose_overdue()
            try:
                await storage.beat_worker(self._worker_id, gone=True)
            except StorageError as error:
                log.debug(
                    "worker %s could not report that it stopped, so it counts as alive until its last report is too "
                    "old: %s: %s",
                    self._worker_id,
                    type(error).__name__,
                    error,
                    extra={"worker": self._worker_id, "reason": str(error)},
                )

    async def _rest(self) -> bool:
        """Wait for the next renewal or for a nudge; return True to stop."""
        if self._task is not None:
            return await self._rest_here()
        await asyncio.to_thread(self._stop.wait, min(CALM_SEC, self._lease_sec / 3))
        self._nudged = await asyncio.to_thread(self._due.wait, max(0.0, self._lease_sec / 3 - CALM_SEC))
        self._due.clear()
        return self._stop.is_set()

    async def _rest_here(self) -> bool:
        rests = [asyncio.create_task(self._clock.rest(self._lease_sec / 3)), asyncio.create_task(self._due_here.wait())]
        try:
            await asyncio.wait(rests, return_when="FIRST_COMPLETED")
        finally:
            for rest in rests:
                rest.cancel()
        self._nudged = self._due_here.is_set()
        self._due_here.clear()
        return self._stop.is_set()

    async def _renew(self, storage: Storage) -> None:
        """Renew all leases after a third of their duration; after a nudge, only those of runs that execute code."""
        held = self._leases.all()
        if self._nudged and self._steady() < self._whole_at:
            held = [each for each in held if each[1].at_work]
        else:
            self._whole_at = self._steady() + self._lease_sec / 3
        for first in range(0, len(held), PAGE):
            page = held[first : first + PAGE]
            sent = self._steady()
            renewed = await storage.refresh_locks([lease for lease, _ in page], self._lease_sec)
            for lost in self._leases.renewed(page, renewed, sent + self._lease_sec):
                self._lose(lost)

    def _lose_overdue(self) -> None:
        """Treat the leases whose deadline has passed without a renewal as lost."""
        for lease in self._leases.overdue():
            self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        with suppress(RuntimeError):  # the host's loop is closed
            self._host.call_soon_threadsafe(self._lost, lease)
