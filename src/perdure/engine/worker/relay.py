"""The relay: passes the events of the outbox to the publisher, at least once each, in order for each source.

Every worker with a publisher runs one. It claims all pending events of a source together, so that the events of one
source stay in order. An event that cannot be published is retried with back-off, and the later events of its source
wait; after the last attempt it is marked as failed, and they continue.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from operator import attrgetter

from perdure.engine.execution.clock import Clock
from perdure.engine.replay.guard import is_interruption
from perdure.engine.worker.supervision import Supervised, Supervisor
from perdure.engine.worker.waiting import end_tasks, wait_unless
from perdure.errors import StorageError, TerminalError
from perdure.model.records import OutboxEvent
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

Publisher = Callable[[OutboxEvent], Awaitable[object]]

PAGE = 20  # events per claim: few, because a drain waits until all of them are published
CLAIM_SEC = 30.0
PUBLISH_SEC = 20.0  # timeout for one event; less than CLAIM_SEC
ATTEMPTS_MAX = 20  # about an hour and a half with the back-off of the storage
LOOK_SEC = 10.0  # poll interval without a notification
BUSY_SEC = 1.0  # first poll interval after an error; it doubles up to LOOK_SEC
ENDING_SEC = 1.0  # how long a cancelled publisher may take to end
CALM_SEC = 0.02  # minimum time between two polls that publish nothing


class Relay:
    """The relay of one worker."""

    def __init__(self, storage: Storage, publisher: Publisher, relay_id: str, clock: Clock) -> None:
        self._storage = storage
        self._publisher = publisher
        self._relay_id = relay_id
        self._clock = clock
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self, supervisor: Supervisor) -> None:
        """Start polling for events."""
        self._task = supervisor.start("outbox relay", self._look_for_ever)

    def wake(self) -> None:
        """Poll now, because there may be a new event."""
        self._wake.set()

    async def stop(self, grace_sec: float, hurried: asyncio.Event) -> None:
        """Publish the claimed events within the grace time; other workers claim the rest when the claim expires."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await wait_unless(hurried, [self._task], grace_sec)
            await end_tasks([self._task], ENDING_SEC)

    async def _look_for_ever(self, task: Supervised) -> None:
        pause = LOOK_SEC
        while not self._stopping:
            self._wake.clear()
            try:
                found, well = await self._look()
                task.succeeded()
            except StorageError as error:
                task.unavailable(error)
                found, well = False, False
            if found and well:
                continue
            pause = pause if well else BUSY_SEC
            await asyncio.sleep(CALM_SEC)
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pause = min(2 * pause, LOOK_SEC)

    async def _look(self) -> tuple[bool, bool]:
        """Publish a page of events, sources concurrently; return whether there were any, and whether all succeeded."""
        events = await self._storage.get_pending_outbox_events(PAGE, relay_id=self._relay_id, lease_sec=CLAIM_SEC)
        sources = [list(some) for _, some in groupby(events, attrgetter("event_source"))]
        return bool(events), all(await asyncio.gather(*map(self._publish_source, sources)))

    async def _publish_source(self, events: Sequence[OutboxEvent]) -> bool:
        """Publish events in order, up to the first that must be retried; return whether there was none."""
        for event in events:
            try:
                async with self._clock.timeout(PUBLISH_SEC):
                    await self._publisher(event)
            except BaseException as error:
                if is_interruption(error):
                    raise
                if not await self._record_failure(event, error):
                    return False
            else:
                await self._storage.mark_outbox_event_sent(event.event_id)
        return True

    async def _record_failure(self, event: OutboxEvent, error: BaseException) -> bool:
        """Record a failed attempt; return whether it was the last, so that the event is marked as failed."""
        message = str(error) or type(error).__name__
        attempt = event.retry_count + 1
        final = isinstance(error, TerminalError) or attempt >= ATTEMPTS_MAX
        if final:
            await self._storage.mark_outbox_event_failed(event.event_id, error=message, relay_id=self._relay_id)
        else:
            await self._storage.increment_outbox_attempts(event.event_id, error=message, relay_id=self._relay_id)
        log.log(
            logging.ERROR if final else logging.WARNING,
            "event %s (%s) in the outbox could not be published (attempt %d of %d), %s: %s: %s",
            event.event_id,
            event.event_type,
            attempt,
            ATTEMPTS_MAX,
            "marked as failed" if final else "retrying with back-off",
            type(error).__name__,
            error,
            extra={
                "event_id": event.event_id,
                "event_type": event.event_type,
                "attempt": attempt,
                "worker": self._relay_id,
                "error_type": type(error).__name__,
                "error_message": str(error),
            },
        )
        return final
