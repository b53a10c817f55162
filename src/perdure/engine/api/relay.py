"""Relays without a worker: processes that publish the outbox and execute no runs."""

import asyncio
import logging
from contextlib import AsyncExitStack
from types import TracebackType

from perdure.brokers.publishing import Publisher
from perdure.codecs.pipeline import Codecs
from perdure.database.cancellation import finish
from perdure.database.secret import Secret
from perdure.engine.api.client import Client
from perdure.engine.api.publishers import checked_publisher
from perdure.engine.api.serving import serve_until_signal
from perdure.engine.api.worker_ids import new_worker_id
from perdure.engine.worker.notifications import listen
from perdure.engine.worker.relay import OutboxRelay, PublishFunction
from perdure.engine.worker.supervision import Supervised
from perdure.engine.worker.waiting import end_tasks
from perdure.model import limits
from perdure.model.durations import Duration, seconds
from perdure.model.records import WakeUp
from perdure.storage.contract import Storage
from perdure.storage.wakeups import OUTBOX

log = logging.getLogger("perdure.engine")

DRAIN_SEC = 10.0
SCAN = "scan"  # stands for notifications that may have been lost


class Relay(Client):
    """A client that also publishes the outbox, without executing runs: `async with Relay(url, publisher="nats://…"):`.

    - `database`: a database URL, or an open storage, which stays open when the relay closes.
    - `publisher`: where the events go; see `App`.
    - `codec`: the codec of the apps and clients that send the events (default: none).
    - `drain_timeout`: time for events that are being published when the relay closes (default: 10 seconds).
    - `relay_id`: the name of this relay in the database and the log; unique among all relays and workers (default:
      host name, process id and a random part).

    Any number of relays and apps with publishers can share a database. Raises `TypeError`, `ValueError` or
    `ConfigurationError` for an invalid setting.
    """

    def __init__(
        self,
        database: str | Storage,
        *,
        publisher: str | PublishFunction | Publisher,
        codec: Codecs | None = None,
        drain_timeout: Duration = DRAIN_SEC,
        relay_id: str | None = None,
    ) -> None:
        publisher = Secret(publisher) if isinstance(publisher, str) else publisher
        super().__init__(database, outbox=True, codec=codec)
        del database  # a traceback shows arguments, and a URL may have a password
        self._publisher = checked_publisher(publisher, "Relay")
        self._drain_sec = seconds(drain_timeout, "Relay(drain_timeout=)")
        self.relay_id: str = new_worker_id() if relay_id is None else limits.name(relay_id, "Relay(relay_id=)")
        self._relay: OutboxRelay
        self._listening: asyncio.Task[None]
        self._hurried = asyncio.Event()

    async def _enter(self, opening: AsyncExitStack) -> None:
        await super()._enter(opening)
        self._relay = OutboxRelay(self._opened, self._publisher, self.relay_id, self._clock)
        self.outbox_stored = self._relay.wake
        self._relay.start(self._supervisor)
        self._listening = self._supervisor.start("listener", self._listen)
        log.info(
            "relay %s started: it publishes the outbox to %r",
            self.relay_id,
            self._publisher,
            extra={"worker": self.relay_id},
        )

    async def _listen(self, task: Supervised) -> None:
        await listen(self._opened, task, self._heard)

    def _heard(self, hint: WakeUp) -> None:
        if hint.kind in (OUTBOX, SCAN):
            self._relay.wake()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await finish(self._drain(), hurry=self._hurried.set)
        finally:
            await super().__aexit__(kind, error, trace)

    async def _drain(self) -> None:
        await self._relay.stop(self._drain_sec, self._hurried)
        await end_tasks([self._listening])
        log.info("relay %s stopped", self.relay_id, extra={"worker": self.relay_id})

    async def serve(self) -> None:
        """Open the relay and publish events until SIGTERM or SIGINT, then finish what is being published and close it.

        A second signal ends this immediately. Raises `EngineError` if a background task keeps failing.
        """
        await serve_until_signal(self, lambda: self._supervisor.failure(), self._hurried.set)
