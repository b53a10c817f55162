"""The work loop: when a worker looks for work, and in which order it does it.

A notification, or the time of the next due work, wakes it. Notifications can be lost, so it also polls. Many of them
mean nothing for this worker, so it looks less often while its looks find nothing; work that this process has created
itself does not wait for that.
"""

import asyncio
import logging
import time
from contextlib import suppress

from perdure.database.pacing import Pace
from perdure.engine.execution.slots import Slots
from perdure.engine.worker.claiming import Claiming
from perdure.engine.worker.cron import Cron
from perdure.engine.worker.host import WorkerHost
from perdure.engine.worker.settings import WorkerSettings
from perdure.engine.worker.stuck import published
from perdure.engine.worker.supervision import Supervised
from perdure.engine.worker.timers import BATCH, deliver, expire_waits, fire_timers
from perdure.engine.worker.unserved import UnservedWorkflows
from perdure.errors import CommitUnknownError, DatabaseUnavailableError, StorageError

log = logging.getLogger("perdure.engine")

LOOK_SEC = 10.0  # poll interval without a notification
WHOLE_SEC = 30.0  # interval of the polls that look for every kind of work
CALM_SEC = 0.02  # maximum of the pause between two polls while there are notifications
CALM_MIN_SEC = 0.001  # the pause after a poll that found work
AGAIN_SEC = 1.0  # poll interval after an error
OVERDUE_SEC = 0.2  # first poll interval while work is due that another worker is processing


class WorkLoop:
    """Does due work: timers and timeouts, deliveries, cron ticks, and claiming runs."""

    def __init__(self, host: WorkerHost, settings: WorkerSettings, slots: Slots, claiming: Claiming) -> None:
        self._host = host
        self._settings = settings
        self._slots = slots
        self._claiming = claiming
        self.cron = Cron(host, settings)
        self.unserved = UnservedWorkflows(host, settings)
        self._whole_at = 0.0  # when to look for every kind of work, by the monotonic clock
        self._fruitless = 0
        self._pace = Pace(CALM_MIN_SEC, CALM_SEC)
        self._ending = False

    def end(self) -> None:
        """End the loop after the work that it does now: a cancellation would lose leases that it just acquires."""
        self._ending = True
        self._host.wake()

    async def run(self, task: Supervised) -> None:
        """Look for work again and again, until `end()` is called."""
        while not self._ending:
            self._host.work.clear()
            self._host.own_work.clear()
            granted, began = self._slots.searching, time.monotonic()
            try:
                delay = await self.look()
                task.succeeded()
            except (DatabaseUnavailableError, CommitUnknownError) as error:
                task.unavailable(error)
                delay = AGAIN_SEC
            except StorageError as error:
                log.exception(
                    "worker %s could not look for work, retrying in a second: %s: %s",
                    self._host.worker_id,
                    type(error).__name__,
                    error,
                    extra={"worker": self._host.worker_id, "reason": str(error)},
                )
                delay = AGAIN_SEC
            self._slots.end_search(granted)
            await self._rest(time.monotonic() - began, delay)

    async def _rest(self, took: float, delay: float) -> None:
        """Wait for a notification, at most `delay` seconds; `took` is the duration of the last look.

        Notifications wait for the pause. The work of this process, and work whose time is known, wait only for as long
        as the last look took.
        """
        await asyncio.sleep(min(took, CALM_SEC))
        pause = min(self._pace.pause(), CALM_SEC, delay)
        with suppress(TimeoutError):  # this process has created no work in the meantime
            async with asyncio.timeout(pause - took):
                await self._host.own_work.wait()
        with suppress(TimeoutError):  # no notification came: look anyway
            async with asyncio.timeout(delay):
                await self._host.work.wait()

    async def look(self) -> float:
        """Do all due work and return the seconds until more is due.

        One statement checks whether any work is due, so that a notification for nothing costs no more. Work that it
        cannot see (messages of compatible frameworks) is looked for every `WHOLE_SEC`.
        """
        whole = time.monotonic() >= self._whole_at
        sent, woken = self._host.take_sent(), self._host.take_woken()
        if 0 < len(sent) <= BATCH:  # if there are more, they are due work like any other
            await self._deliver(sent)
        if 0 < len(woken) <= BATCH and await self._claiming.claim_woken(woken):
            self._pace.quicken()
        delay = await self._delay()
        if delay > 0 and not whole:
            return delay
        if whole:
            self._whole_at = time.monotonic() + WHOLE_SEC
            await self.publish()
            await self.unserved.warn()
        if await self._work():
            self._fruitless = 0
            self._pace.quicken()
            return await self._delay()
        self._fruitless = min(self._fruitless + 1, 10)  # work is due, but others process it, or no slot is free
        return min(LOOK_SEC, self._settings.lease_sec, delay or OVERDUE_SEC * 2.0**self._fruitless)

    async def publish(self) -> None:
        """Publish what this worker serves, and read the database's clock."""
        info = published(self._settings.workflows, self._settings.lease_sec)
        await self._host.storage.beat_worker(self._host.worker_id, info)
        await self._host.database_clock.set()

    async def _delay(self) -> float:
        dues = self.cron.next_ticks()
        dues += filter(None, [await self._host.storage.next_work_at()])
        delays = [(due - self._host.now()).total_seconds() for due in dues]
        return max(0.0, min(LOOK_SEC, self._settings.lease_sec, *delays))

    async def _deliver(self, channels: list[str]) -> None:
        """Deliver what was sent to these channels, and lease the receivers; other work comes later."""
        if woken := await deliver(self._host.storage, channels):
            self._pace.quicken()
            await self._claiming.claim_woken(woken)

    async def _work(self) -> bool:
        """Do each kind of work once; return whether anything was done."""
        storage = self._host.storage
        done = await fire_timers(storage)
        done += await expire_waits(storage)
        done += len(await deliver(storage))
        done += await self.cron.start_ticks()
        done += await self._claiming.claim()
        return done > 0
