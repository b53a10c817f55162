"""The relay: passes the events of the outbox to the publisher, at least once each, in order for each source.

Every worker with a publisher runs one. It claims the next events of some sources, publishes those of one source one
after the other, and different sources at once. It records in batches what was published; after a crash, the events
whose record is missing are published again, in the same order.

An event that is refused is retried with back-off, and the later events of its source wait; after the last attempt it is
marked as failed, and they continue. If the broker is unavailable, nothing counts as an attempt: the claimed events are
released, and the relay connects again with back-off.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import groupby
from operator import attrgetter

from perdure.brokers.publishing import Publisher
from perdure.engine.execution.clock import Clock, steady
from perdure.engine.replay.guard import is_interruption
from perdure.engine.worker.outages import BrokerOutage, back_off
from perdure.engine.worker.supervision import Supervised, Supervisor
from perdure.engine.worker.waiting import end_tasks, wait_unless
from perdure.errors import BrokerUnavailableError, StorageError, TerminalError
from perdure.model.envelopes import check_readable
from perdure.model.records import OutboxEvent
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

PublishFunction = Callable[[OutboxEvent], Awaitable[object]]

PAGE = 200  # events per claim
SOURCES_MAX = 50  # no further claim while so many sources are being published
CLAIM_SEC = 30.0
PUBLISH_SEC = 20.0  # timeout for one event
STARTING_SEC = CLAIM_SEC - PUBLISH_SEC  # later the claim could end while the event is being published
RECORD_SEC = 0.05  # events that are published within this time are recorded together
ATTEMPTS_MAX = 20  # about an hour and a half with the back-off
BACK_OFF_MAX_SEC = 300.0
OPEN_SEC = 30.0  # timeout for opening the publisher, and for closing it
PAUSE_MAX_SEC = 60.0  # for a source whose receiver is unavailable
LOOK_SEC = 10.0  # poll interval without a notification
BUSY_SEC = 1.0  # first poll interval after an error; it doubles up to LOOK_SEC
ENDING_SEC = 1.0  # how long a cancelled publisher may take to end
CALM_SEC = 0.02  # minimum time between two polls that find nothing


class FunctionPublisher:
    """A function as a publisher. It may send each source elsewhere, so it has no connection that all of them share."""

    def __init__(self, publish: PublishFunction) -> None:
        self.publish = publish

    async def __aenter__(self) -> object:
        return self

    async def __aexit__(self, *error: object) -> None: ...


class OutboxRelay:
    """The relay of one worker, or one without a worker."""

    def __init__(self, storage: Storage, publisher: Publisher, relay_id: str, clock: Clock) -> None:
        self._storage = storage
        self._publisher = publisher
        self._is_shared = not isinstance(publisher, FunctionPublisher)  # one connection for all sources
        self._relay_id = relay_id
        self._clock = clock
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._lost: Exception | None = None  # what ended the current connection
        self._outage = BrokerOutage(getattr(publisher, "shown", repr(publisher)), "events wait in the outbox")
        self._paused: dict[str, int] = {}  # sources whose receiver is unavailable, and how often in a row

    def start(self, supervisor: Supervisor) -> None:
        """Start polling for events."""
        self._task = supervisor.start("outbox relay", self._relay_for_ever)

    def wake(self) -> None:
        """Poll now, because there may be a new event."""
        self._wake.set()

    async def stop(self, grace_sec: float, hurried: asyncio.Event) -> None:
        """Let the events that are being published finish within the grace time, and release the other claims."""
        self._stop.set()
        self._wake.set()
        if self._task is not None:
            await wait_unless(hurried, [self._task], grace_sec)
            await end_tasks([self._task], ENDING_SEC)

    async def _relay_for_ever(self, task: Supervised) -> None:
        """Open the publisher, and again each time it was unavailable."""
        while not self._stop.is_set():
            connected = False
            try:
                async with _opened(self._publisher):
                    connected = True
                    self._outage.connected(task)
                    await self._publish_while_available(task)
            except (BrokerUnavailableError, ConnectionError) as error:
                pause = self._outage.began(task, error, LOOK_SEC, connected=connected)
                await _wait_for(self._stop, pause)

    async def _publish_while_available(self, task: Supervised) -> None:
        """Claim events and publish them, sources concurrently, until the relay stops or the connection is lost."""
        self._lost = None
        sources: set[asyncio.Task[bool]] = set()
        pause = LOOK_SEC
        try:
            while not self._stop.is_set() and self._lost is None:
                self._wake.clear()
                found, well = await self._look(task, sources)
                if found == PAGE and len(sources) < SOURCES_MAX:
                    continue
                pause = pause if well else BUSY_SEC
                if not found:
                    await asyncio.sleep(CALM_SEC)
                if not await _wait_for(self._wake, pause):  # a source has ended, or there may be a new event
                    pause = min(2 * pause, LOOK_SEC)
        except BaseException:
            await end_tasks(sources, ENDING_SEC / 2)
            raise
        if sources:
            await asyncio.wait(sources)
            self._collect(task, sources)
        if self._lost is not None:
            raise self._lost

    async def _look(self, task: Supervised, sources: "set[asyncio.Task[bool]]") -> tuple[int, bool]:
        """Claim a page of events and start to publish them; return their number, and whether nothing failed."""
        well = self._collect(task, sources)
        until = steady() + STARTING_SEC  # before the claim, which begins later
        try:
            events = await self._storage.get_pending_outbox_events(PAGE, relay_id=self._relay_id, lease_sec=CLAIM_SEC)
        except StorageError as error:
            task.unavailable(error)
            return 0, False
        task.succeeded()
        for _, some in groupby(events, attrgetter("event_source")):
            publishing = asyncio.create_task(self._publish_source(task, list(some), until))
            publishing.add_done_callback(lambda _: self._wake.set())
            sources.add(publishing)
        return len(events), well

    def _collect(self, task: Supervised, sources: "set[asyncio.Task[bool]]") -> bool:
        """Remove the tasks that have ended; return whether everything succeeded."""
        well = True
        for each in [each for each in sources if each.done()]:
            sources.discard(each)
            try:
                well = each.result() and well
            except StorageError as error:
                task.unavailable(error)
                well = False
        return well

    async def _publish_source(self, task: Supervised, events: Sequence[OutboxEvent], until: float) -> bool:
        """Publish events in order, up to the first that must be retried; return whether there was none."""
        recorder = _Recorder(self._storage, self._relay_id)
        for number, event in enumerate(events):
            if self._stop.is_set() or self._lost is not None or steady() > until:
                await recorder.flush(events[number:])
                return True
            try:
                for data in (event.event_data, event.event_data_binary):
                    check_readable(data, f"the data of event {event.event_id!r}")
                async with self._clock.timeout(PUBLISH_SEC):
                    await self._publisher.publish(event)
            except (BrokerUnavailableError, ConnectionError) as error:
                await recorder.flush(events[number:], pause=self._unavailable(event, error))
                return False
            except BaseException as error:
                if is_interruption(error):
                    raise
                await recorder.flush()
                if not await self._record_failure(event, error):
                    return False
            else:
                self._outage.ended(task)
                self._paused.pop(event.event_source, None)
                await recorder.sent(event)
        await recorder.flush()
        return True

    def _unavailable(self, event: OutboxEvent, error: Exception) -> float:
        """Note that an event could not be published through no fault of its own; return how long its source waits."""
        if self._is_shared:
            self._lost = self._lost or error
            return 0.0
        source = event.event_source
        self._paused[source] = self._paused.get(source, 0) + 1
        pause = back_off(self._paused[source], PAUSE_MAX_SEC)
        log.warning(
            "event %s (%s) in the outbox waits, because its receiver is unavailable; retrying in %.1f s: %s: %s",
            event.event_id,
            event.event_type,
            pause,
            type(error).__name__,
            error,
            extra={
                "event_id": event.event_id,
                "event_type": event.event_type,
                "retry_in_sec": pause,
                "worker": self._relay_id,
                "error_type": type(error).__name__,
                "error_message": str(error),
            },
        )
        return pause

    async def _record_failure(self, event: OutboxEvent, error: BaseException) -> bool:
        """Record a failed attempt; return whether it was the last, so that the event is marked as failed."""
        message = str(error) or type(error).__name__
        attempt = event.retry_count + 1
        final = isinstance(error, TerminalError) or attempt >= ATTEMPTS_MAX
        if final:
            await self._storage.mark_outbox_event_failed(event.event_id, error=message, relay_id=self._relay_id)
        else:
            pause = timedelta(seconds=back_off(attempt, BACK_OFF_MAX_SEC))
            await self._storage.increment_outbox_attempts(
                event.event_id, error=message, back_off=pause, relay_id=self._relay_id
            )
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


class _Recorder:
    """Records what was published of one source, together with what was published shortly before."""

    def __init__(self, storage: Storage, relay_id: str) -> None:
        self._storage = storage
        self._relay_id = relay_id
        self._sent: list[str] = []
        self._since = steady()  # of the last record

    async def sent(self, event: OutboxEvent) -> None:
        """Note that an event was published, and record it soon."""
        self._sent.append(event.event_id)
        if steady() - self._since >= RECORD_SEC:
            await self.flush()

    async def flush(self, released: Sequence[OutboxEvent] = (), *, pause: float = 0.0) -> None:
        """Record what is noted, and that these events are released."""
        sent, self._sent = self._sent, []
        await self._storage.settle_outbox_events(
            sent=sent,
            released=[event.event_id for event in released],
            relay_id=self._relay_id,
            pause=timedelta(seconds=pause),
        )
        self._since = steady()


@asynccontextmanager
async def _opened(publisher: Publisher) -> AsyncIterator[None]:
    """Open a publisher and close it; neither can hang."""
    try:
        async with asyncio.timeout(OPEN_SEC):
            await publisher.__aenter__()
    except TimeoutError as error:
        raise BrokerUnavailableError(f"{publisher!r} was not connected after {OPEN_SEC:g} s") from error
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(OPEN_SEC):
                await publisher.__aexit__(None, None, None)
        except TimeoutError:
            log.warning("the publisher %r did not disconnect within %g s", publisher, OPEN_SEC)


async def _wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set; return False if it was not in time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
