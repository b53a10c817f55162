"""The inbox of a run: what happens to it, handled one by one by the run's task."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

Handle = Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Do nothing but wake the run's task."""


class Inbox:
    """What has happened to one run, in order, while it is executed.

    Most of what happens is the result of an activity that the run's task waits for. The task of the activity passes it
    to the body itself if `is_awaited`, and then calls `proceed`, which saves a switch between two tasks at each step.
    """

    def __init__(self, proceed: Callable[[], bool]) -> None:
        self._proceed = proceed  # starts what the body wants; returns whether the run's task has something to do
        self._items: deque[Handle] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._awaited = False

    def post(self, handle: Handle) -> None:
        """Let the run's task handle something."""
        self._items.append(handle)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def empty(self) -> bool:
        """Return whether everything has been handled."""
        return not self._items

    async def next(self, *, alone: bool) -> Handle:
        """Wait for the next item. With `alone`, another task may handle a result in the meantime."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            self._awaited = alone
            try:
                await self._waiter
            finally:
                self._waiter, self._awaited = None, False
        return self._items.popleft()

    def is_awaited(self) -> bool:
        """Return whether the run's task only waits, so that another task may pass a result to the body."""
        return self._awaited and not self._items

    def proceed(self) -> None:
        """Continue after another task has passed a result to the body."""
        if self._proceed():
            self.post(nothing)

    def clear(self) -> None:
        """Forget everything, because the run is no longer executed."""
        self._items.clear()
