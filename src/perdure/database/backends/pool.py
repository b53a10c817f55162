"""A bounded pool of connections: last used, first taken; waiters are served in order.

No statement is sent when a connection changes hands: the backends leave their sessions clean themselves, and a reset
would cost a round trip each time.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from perdure.errors import DatabaseUnavailableError

C = TypeVar("C")


class Pool(Generic[C]):
    """Up to `limit` connections made by `connect`, thrown away by `discard` once not `alive`."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[C]],
        alive: Callable[[C], bool],
        discard: Callable[[C], None],
        limit: int,
        wait_sec: float,
    ) -> None:
        self._connect, self._alive, self._discard = connect, alive, discard
        self._limit, self._wait_sec = limit, wait_sec
        self._idle: list[C] = []
        self._waiters: deque[tuple[float, asyncio.Future[C | None]]] = deque()
        self._expiry: asyncio.TimerHandle | None = None  # of whoever waits longest; one for each would cost more
        self._size = 0
        self.closed = False

    def take(self) -> C | None:
        """An idle live connection, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if self._alive(connection):
                return connection
            self._discard(connection)
            self._size -= 1
        return None

    async def acquire(self) -> C:
        """A live connection; after too long a wait `DatabaseUnavailableError`."""
        while True:
            if self.closed:
                raise DatabaseUnavailableError("the storage is not open")
            connection = self.take()
            if connection is not None:
                return connection
            if self._size < self._limit:
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
        """A connection handed over, or None for the place of one that was thrown away."""
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
                handed = waiter.result()  # handed over just as we were cancelled: pass it on
                if handed is not None:
                    self.release(handed)
                else:
                    self._invite()
            raise

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell those who waited too long; they stand in front."""
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
                        f"no connection became free within {self._wait_sec:.0f} s: all {self._limit} are in use"
                    )
                )

    def release(self, connection: C) -> None:
        """Give it back; a dead one makes room for a new one."""
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
        """Let the next who waits look again."""
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
        """Throw the idle connections away: what somebody met on one of them may await him on the others."""
        while self._idle:
            self._discard(self._idle.pop())
            self._vacate()

    def close(self) -> None:
        """Throw away the idle connections now and the others when they come back."""
        self.closed = True
        while self._idle:
            self._discard(self._idle.pop())
            self._size -= 1
        while self._waiters:
            self._invite()
        if self._expiry is not None:
            self._expiry.cancel()
