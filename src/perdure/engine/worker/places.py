"""Places limit how many activities of a worker execute at the same time."""

import asyncio
from collections import deque


class Places:
    """A limit, first come, first served.

    `asyncio.Semaphore` takes seven calls for a place that is free, which nearly all are.
    """

    def __init__(self, most: int) -> None:
        self.free = most
        self._queue: deque[asyncio.Future[None]] = deque()

    def take_free(self) -> bool:
        """Take a place if one is free; return whether there was one. Otherwise `take` waits for it."""
        if self.free > 0:
            self.free -= 1
            return True
        return False

    async def take(self) -> None:
        """Take a place, after all that wait for one."""
        if self.take_free():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.release()  # granted and cancelled at the same time
            raise

    def release(self) -> None:
        """Pass a place to the first that waits, or make it free."""
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1
