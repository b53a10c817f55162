"""The subscriber: stores the messages of a broker, and acknowledges them once they are stored.

A message whose acknowledgement is lost is delivered again, and its id shows that it is stored already. A message that
cannot be stored, whatever the state of the database, is rejected, so that it does not block the others. While the
database is away, nothing is fetched.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from perdure.brokers.incoming import BrokerMessage, ToChannel, ToEvent
from perdure.brokers.subscription import Subscription
from perdure.engine.execution.clock import steady
from perdure.engine.replay.guard import is_interruption
from perdure.engine.worker.outages import BrokerOutage, back_off
from perdure.engine.worker.supervision import Supervised, Supervisor
from perdure.engine.worker.waiting import end_tasks, wait_unless
from perdure.errors import (
    BrokerUnavailableError,
    HistoryConflictError,
    LimitError,
    RunNotFoundError,
    SerializationError,
    StorageError,
)

log = logging.getLogger("perdure.engine")

Store = Callable[[ToEvent | ToChannel], Awaitable[None]]

PAUSE_MAX_SEC = 10.0
HOLD_SEC = 10.0  # a message is held so long while the database is away, before it is left to the broker
HOLD_PAUSE_SEC = 0.2
OPEN_SEC = 60.0  # timeout for connecting
ENDING_SEC = 5.0  # how long a cancelled subscriber may take to disconnect
# What storing a message always raises again. Any other error is one of the database, or a bug.
PERMANENT = (HistoryConflictError, LimitError, RunNotFoundError, SerializationError, TypeError, ValueError)


class Subscriber:
    """The background task of one subscription."""

    def __init__(
        self, subscription: Subscription, store: Store, check: Callable[[], Awaitable[object]], number: int
    ) -> None:
        self._subscription = subscription
        self._source = subscription.source
        self._store = store
        self._check = check  # raises while the database is away
        self._name = f"subscription {number}"
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._outage = BrokerOutage(subscription.shown, "its messages wait there")
        self._database_failures = 0
        self._has_warned = False  # of messages without an id

    def start(self, supervisor: Supervisor) -> None:
        """Start to consume."""
        self._task = supervisor.start(self._name, self._consume_for_ever)

    async def stop(self, grace_sec: float, hurried: asyncio.Event) -> None:
        """Finish the current message within the grace time and disconnect; the broker delivers the others again."""
        self._stop.set()
        if self._task is not None:
            await wait_unless(hurried, [self._task], grace_sec)
            await end_tasks([self._task], ENDING_SEC)

    async def _consume_for_ever(self, task: Supervised) -> None:
        """Connect and consume, and again after the broker or the database was unavailable."""
        while not self._stop.is_set():
            try:
                await self._check()
                task.succeeded()
                await self._consume(task)
                return
            except BrokerUnavailableError as error:
                pause = self._outage.began(task, error, PAUSE_MAX_SEC, connected=False)
            except StorageError as error:
                task.unavailable(error)
                self._database_failures += 1
                pause = back_off(self._database_failures, PAUSE_MAX_SEC)
            await self._rest(pause)

    async def _consume(self, task: Supervised) -> None:
        source = self._source
        try:
            async with asyncio.timeout(OPEN_SEC):
                await source.__aenter__()
        except TimeoutError as error:
            raise BrokerUnavailableError(f"{source.shown} was not connected after {OPEN_SEC:g} s") from error
        try:
            self._outage.ended(task)
            while not self._stop.is_set():
                await self._store_all(await self._fetched())
        finally:
            await source.__aexit__(None, None, None)

    async def _fetched(self) -> Sequence[BrokerMessage]:
        """Return the next messages, or nothing when the subscriber stops."""
        stopped, fetching = asyncio.create_task(self._stop.wait()), asyncio.ensure_future(self._source.fetch())
        try:
            await asyncio.wait([stopped, fetching], return_when="FIRST_COMPLETED")
        finally:
            stopped.cancel()
            if not fetching.done():
                await end_tasks([fetching])
        return [] if fetching.cancelled() else fetching.result()

    async def _store_all(self, messages: Sequence[BrokerMessage]) -> None:
        """Store messages in order, and acknowledge what is stored, also if the database fails in between."""
        stored: list[BrokerMessage] = []
        try:
            for message in messages:
                if self._stop.is_set():
                    break
                if (reason := await self._store_one(message)) is None:
                    stored.append(message)
                else:
                    await self._reject(message, reason)
        finally:
            if stored:
                await self._source.acknowledge(stored)
                self._subscription.stored += len(stored)

    async def _store_one(self, message: BrokerMessage) -> str | None:
        """Store a message; return why it can never be stored, or None if it is."""
        try:
            found = self._subscription.read(message)
        except BaseException as error:
            if is_interruption(error):
                raise
            return f"{type(error).__name__}: {error}"
        if found is None:
            return None
        if found.id is None:
            self._warn_of_missing_id()
        try:
            await self._store_soon(found)
        except PERMANENT as error:
            return f"{type(error).__name__}: {error}"
        self._database_failures = 0
        return None

    async def _store_soon(self, found: ToEvent | ToChannel) -> None:
        """Store a message, also if the database is away for a moment: leaving it to the broker takes longer."""
        until = steady() + HOLD_SEC
        while True:
            try:
                return await self._store(found)
            except PERMANENT:
                raise
            except StorageError:
                if self._stop.is_set() or steady() > until:
                    raise
            await self._rest(HOLD_PAUSE_SEC)

    def _warn_of_missing_id(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "messages of %s have no id: one that is delivered again is stored again; let its sender set message_id",
                self._subscription.shown,
                extra={"broker": self._subscription.shown},
            )

    async def _reject(self, message: BrokerMessage, reason: str) -> None:
        await self._source.reject(message, reason)
        self._subscription.rejected += 1
        log.error(
            "message %s (%s) of %s was rejected, because it cannot be stored: %s",
            message.id,
            message.subject,
            self._subscription.shown,
            reason,
            extra={
                "message_id": message.id,
                "subject": message.subject,
                "broker": self._subscription.shown,
                "reason": reason,
            },
        )

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass
