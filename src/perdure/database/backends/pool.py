"""Pool a bounded number of connections: last used, first taken; waiters are served in order.

No statement is sent when a connection is handed over: the backends leave their sessions clean, and a reset would cost
a round trip each time.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from perdure.errors import DatabaseUnavailableError

C = TypeVar("C")


class Pool(Generic[C]):
    """Hold up to `limit` connections made by `connect`, and discard those that are no longer `alive`."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[C]],
        alive: Callable[[C], bool],
        discard: Callable[[C], None],
        limit: int,
        wait_sec: float,
    ) -> None:
        self._connect, self._alive, self._discard = connect, alive, discard
        self.limit, self._wait_sec = limit, wait_sec
        self._idle: list[C] = []
        self._waiters: deque[tuple[float, asyncio.Future[C | None]]] = deque()
        self._expiry: asyncio.TimerHandle | None = None  # of the longest waiter; a timer for each would cost more
        self._size = 0
        self.closed = False

    @property
    def used(self) -> int:
        """Return the number of connections that are not idle."""
        return self._size - len(self._idle)

    def take(self) -> C | None:
        """Return an idle live connection, or None."""
        while self._idle:
            connection = self._idle.pop()
            if self._alive(connection):
                return connection
            self._discard(connection)
            self._size -= 1
        return None

    async def acquire(self) -> C:
        """Return a live connection; raise `DatabaseUnavailableError` if none becomes free in time."""
        while True:
            if self.closed:
                raise DatabaseUnavailableError("the storage is not open: call initialize(), or use it in `async with`")
            connection = self.take()
            if connection is not None:
                return connection
            if self._size < self.limit:
                self._size += 1
                try:
                    return await self._connect()
                except BaseException:
                    self._vacate()
                    raise
            handed = await self._wait()
            if handed is not None:
                return handed

    async def _wait(self) -> C | None:
        """Return a connection that was handed over, or None if the caller may open a new one."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[C | None] = loop.create_future()
        until = loop.time() + self._wait_sec
        self._waiters.append((until, waiter))
        if self._expiry is None:
            self._expiry = loop.call_at(until, self._expire, loop)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                handed = waiter.result()  # handed over during the cancellation: pass it on
                if handed is not None:
                    self.release(handed)
                else:
                    self._invite()
            raise

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise an error in the callers that have waited too long, which are at the front of the queue."""
        self._expiry = None
        while self._waiters:
            until, waiter = self._waiters[0]
            if until > loop.time() and not waiter.done():
                self._expiry = loop.call_at(until, self._expire, loop)
                return
            self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(
                    DatabaseUnavailableError(
                        f"no connection became free within {self._wait_sec:.0f} s: all {self.limit} are in use"
                    )
                )

    def release(self, connection: C) -> None:
        """Return a connection to the pool; a dead one is discarded, and the next waiter may open a new one."""
        if self.closed or not self._alive(connection):
            self._discard(connection)
            self._vacate()
            return
        waiter = self._next_waiter()
        if waiter is None:
            self._idle.append(connection)
        else:
            waiter.set_result(connection)

    def _vacate(self) -> None:
        self._size -= 1
        self._invite()

    def _invite(self) -> None:
        """Let the next waiter try again."""
        waiter = self._next_waiter()
        if waiter is not None:
            waiter.set_result(None)

    def _next_waiter(self) -> "asyncio.Future[C | None] | None":
        while self._waiters:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                return waiter
        return None

    def clear(self) -> None:
        """Discard the idle connections, because what broke one of them may have broken all."""
        while self._idle:
            self._discard(self._idle.pop())
            self._vacate()

    def close(self) -> None:
        """Discard the idle connections now and the others when they are released."""
        self.closed = True
        while self._idle:
            self._discard(self._idle.pop())
            self._size -= 1
        while self._waiters:
            self._invite()
        if self._expiry is not None:
            self._expiry.cancel()
