"""Define what is measured: five kinds of work, done by the library and by hand, with the same inputs and effects."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from perdure.model.records import ChannelMessage, HistoryEvent, Lease, ListInstancesOptions
from perdure.storage.stores import SQLStorage

C = TypeVar("C")

POOL_SIZE = 10
WORKER = "bench"
LEASE_SEC = 30.0
PAGE = 50

COLUMNS = """instance_id, workflow_name, input_data, framework, status, output_data, current_activity_id, source_hash,
       owner_service, continued_from, locked_by, locked_at, lock_timeout_seconds, lock_expires_at, lock_token,
       started_at, updated_at, headers"""

Step = tuple[HistoryEvent, Lease]


class Place(NamedTuple):
    """Hold the end of a page: the start time and the id of its last instance."""

    started_at: datetime
    instance_id: str

    @property
    def token(self) -> str:
        """Return the library's page token for it."""
        return f"{self.started_at.isoformat(timespec='microseconds')}||{self.instance_id}"


def columns(event: HistoryEvent) -> tuple[str, str, str, str, str | None, bytes | None]:
    """Return what is stored of an event."""
    data = event.event_data
    text = None if data is None else data.decode()
    return event.instance_id, event.activity_id, event.event_type, event.data_type, text, event.event_data_binary


class Side(Protocol):
    """Do the work in one way. Each method returns a true value, or the measurement is invalid."""

    sequential: bool  # the driver has no concurrency: the callers run one after the other

    async def step(self, step: Step) -> Any:
        """Record an event under a current lease; return its id."""

    async def batch(self, steps: Sequence[Step]) -> Any:
        """Record many events, each under its lease, in one commit; return their ids."""

    async def acquire(self, instance_id: str) -> Any:
        """Take a free lease; return its token and expiry."""

    async def deliver(self, message: ChannelMessage) -> Any:
        """Take the lease of the instance that waits on the message's channel, record the message, set it running."""

    async def page(self, after: Place) -> Any:
        """Return the rows of the page after a position, newest first, with every column, and the next position."""

    async def close(self) -> None:
        """Close the connections."""


class Ours:
    """Do the work with the library."""

    sequential = False

    def __init__(self, storage: SQLStorage) -> None:
        self._storage = storage

    async def step(self, step: Step) -> Any:
        event, lease = step
        return await self._storage.append_history(event, lease=lease)

    async def batch(self, steps: Sequence[Step]) -> Any:
        ids = await self._storage.append_histories(steps)
        return all(type(found) is int for found in ids) and ids

    async def acquire(self, instance_id: str) -> Any:
        return await self._storage.try_acquire_lock(instance_id, WORKER, LEASE_SEC)

    async def deliver(self, message: ChannelMessage) -> Any:
        delivered = await self._storage.deliver_channel_message_with_lock(
            message.channel, message.channel, message, WORKER, LEASE_SEC
        )
        return delivered and delivered.message_id == message.id

    async def page(self, after: Place) -> Any:
        found = await self._storage.list_instances(ListInstancesOptions(PAGE, after.token))
        return len(found.instances) == PAGE and found

    async def close(self) -> None:
        return


class Connections(Generic[C]):
    """Pool connections in the simplest way: no reset, no check, the last used first."""

    def __init__(self) -> None:
        self.all: list[C] = []
        self._free: asyncio.LifoQueue[C] = asyncio.LifoQueue()

    async def open(self, connect: Callable[[], Awaitable[C]]) -> None:
        """Open the connections."""
        self.all = [await connect() for _ in range(POOL_SIZE)]
        for connection in self.all:
            self._free.put_nowait(connection)

    async def take(self) -> C:
        """Return a connection, as soon as one is free."""
        return await self._free.get()

    def give(self, connection: C) -> None:
        """Return a connection to the pool."""
        self._free.put_nowait(connection)
