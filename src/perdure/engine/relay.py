"""The relay: hands the events of the outbox to a publisher, at least once each, in order for each source.

Any worker that has a publisher does it. A source's events are claimed together, so workers share sources, not events.
One that cannot be published is tried again after a growing while, and the later ones of its source wait behind it; in
the end it is parked, and no longer in their way.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from operator import attrgetter

from perdure.engine.guard import came_by_signal, is_cancelled
from perdure.engine.supervision import Supervised, Supervisor
from perdure.errors import StorageError, TerminalError
from perdure.model.records import OutboxEvent
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

Publisher = Callable[[OutboxEvent], Awaitable[object]]

PAGE = 20  # what is claimed is published before a drain ends
CLAIM_SEC = 30.0
PUBLISH_SEC = 20.0  # for one event; below a claim's time
ATTEMPTS_MAX = 20  # about an hour and a half, by the back-off of the storage
LOOK_SEC = 10.0  # without a hint
BUSY_SEC = 1.0  # after something went wrong; then longer and longer
ENDING_SEC = 1.0  # how long a publisher that is cancelled may take to end
CALM_SEC = 0.02  # at least so long between two looks that came to nothing


class Relay:
    """One worker's part of it."""

    def __init__(self, storage: Storage, publisher: Publisher, relay_id: str) -> None:
        self._storage = storage
        self._publisher = publisher
        self._relay_id = relay_id
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self, supervisor: Supervisor) -> None:
        """Begin to look for events."""
        self._task = supervisor.start("outbox relay", self._look_for_ever)

    def wake(self) -> None:
        """There may be an event."""
        self._wake.set()

    async def stop(self, grace_sec: float, hurried: asyncio.Event) -> None:
        """Publish what is claimed, if it goes quickly; the rest is claimed by others when its time is up."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            hurry = asyncio.create_task(hurried.wait())
            await asyncio.wait([self._task, hurry], timeout=grace_sec, return_when="FIRST_COMPLETED")
            hurry.cancel()
            self._task.cancel()
            await asyncio.wait([self._task], timeout=ENDING_SEC)

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
        """Publish a page of events, sources side by side; whether there were any, and whether all went well."""
        events = await self._storage.get_pending_outbox_events(PAGE, relay_id=self._relay_id, lease_sec=CLAIM_SEC)
        sources = [list(some) for _, some in groupby(events, attrgetter("event_source"))]
        return bool(events), all(await asyncio.gather(*map(self._publish_source, sources)))

    async def _publish_source(self, events: Sequence[OutboxEvent]) -> bool:
        """One after the other, up to the first that has to be tried again; whether there was none."""
        for event in events:
            try:
                async with asyncio.timeout(PUBLISH_SEC):
                    await self._publisher(event)
            except BaseException as error:
                if came_by_signal(error) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
                    raise
                if not await self._parked(event, error):
                    return False
            else:
                await self._storage.mark_outbox_event_sent(event.event_id)
        return True

    async def _parked(self, event: OutboxEvent, error: BaseException) -> bool:
        """What comes of an attempt that failed: in the end, or if it never can succeed, the event is parked."""
        message = str(error) or type(error).__name__
        attempt = event.retry_count + 1
        final = isinstance(error, TerminalError) or attempt >= ATTEMPTS_MAX
        if final:
            await self._storage.mark_outbox_event_failed(event.event_id, error=message, relay_id=self._relay_id)
        else:
            await self._storage.increment_outbox_attempts(event.event_id, error=message, relay_id=self._relay_id)
        log.log(
            logging.ERROR if final else logging.WARNING,
            "event %s (%s) of the outbox could not be published (attempt %d of %d), %s: %s: %s",
            event.event_id,
            event.event_type,
            attempt,
            ATTEMPTS_MAX,
            "and is parked as failed" if final else "retrying with back-off",
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
