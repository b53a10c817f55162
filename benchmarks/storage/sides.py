"""What is measured: five acts, done by the library and by hand, with the same inputs and the same effect."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from collections.abc import AsyncIterator
from typing import Any, Generic, Protocol, TypeVar

from perdure.model.records import HistoryEvent, Lease
from perdure.storage.stores import Rooms

C = TypeVar("C")

POOL_SIZE = 10
WORKER = "bench"
LEASE_SEC = 30.0

Step = tuple[HistoryEvent, Lease]


class Side(Protocol):
    """One way to do the acts. Each gives something true, or the measurement is void."""

    sequential: bool  # the driver has no concurrency: many callers are one after the other

    async def step(self, step: Step) -> Any:
        """Record an event under a current lease; gives its id."""

    async def batch(self, steps: Sequence[Step]) -> Any:
        """Record many events, each under its lease, in one commit; gives their ids."""

    async def acquire(self, instance_id: str) -> Any:
        """Take a free lease; gives its token and expiry."""

    async def close(self) -> None:
        """Close the connections."""


class Ours:
    """The library."""

    sequential = False

    def __init__(self, storage: Rooms) -> None:
        self._storage = storage

    async def step(self, step: Step) -> Any:
        event, lease = step
        return await self._storage.append_history(event, lease=lease)

    async def batch(self, steps: Sequence[Step]) -> Any:
        ids = await self._storage.append_histories(steps)
        return all(type(found) is int for found in ids) and ids

    async def acquire(self, instance_id: str) -> Any:
        return await self._storage.try_acquire_lock(instance_id, WORKER, LEASE_SEC)

    async def close(self) -> None:
        return


class Connections(Generic[C]):
    """The smallest pool there is: no reset, no check, the last used first."""

    def __init__(self) -> None:
        self.all: list[C] = []
        self._free: asyncio.LifoQueue[C] = asyncio.LifoQueue()

    async def open(self, connect: Callable[[], Awaitable[C]]) -> None:
        """Make the connections."""
        self.all = [await connect() for _ in range(POOL_SIZE)]
        for connection in self.all:
            self._free.put_nowait(connection)

    async def take(self) -> C:
        """A connection, as soon as one is free."""
        return await self._free.get()

    def give(self, connection: C) -> None:
        """Put it back."""
        self._free.put_nowait(connection)
