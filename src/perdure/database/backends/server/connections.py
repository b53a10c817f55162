"""Lend the connections of a pool, and clean or discard those that come back from a failure."""

import asyncio
import time
from typing import Generic, TypeVar

from perdure.database.backends.pool import Pool
from perdure.database.backends.server.adapter import Adapter
from perdure.database.cancellation import finish
from perdure.errors import DatabaseUnavailableError

C = TypeVar("C")

PAUSE_MIN_SEC, PAUSE_MAX_SEC = 0.05, 0.5  # between two attempts to reach a server


class Connections(Generic[C]):
    """Lend connections, each to one user at a time. Every connection that was acquired has to be released."""

    def __init__(self, adapter: Adapter[C], pool: Pool[C]) -> None:
        self._adapter = adapter
        self._pool = pool
        self.take, self.release = pool.take, pool.release

    async def acquire(self, until: float) -> C:
        """Return a connection; wait for a server that is restarting."""
        pause = PAUSE_MIN_SEC
        while True:
            try:
                return await self._pool.acquire()
            except DatabaseUnavailableError:
                if self._pool.closed or time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX_SEC)

    async def roll_back(self, connection: C) -> None:
        """Clean the connection, or discard it; re-raise a cancellation only after that."""
        await finish(self._adapter.roll_back_or_discard(connection))

    async def discard_after(self, connection: C, error: BaseException) -> None:
        """Discard a connection; stop a statement that timed out first, because it would keep its locks."""
        try:
            if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
                self._pool.clear()  # on a silent server each idle connection would cost another timeout
                await self.roll_back(connection)
        finally:
            self._adapter.discard(connection)
