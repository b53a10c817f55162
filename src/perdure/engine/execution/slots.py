"""Slots limit how many runs of a worker execute code at the same time.

A run holds a slot while its body, an activity or a compensation may execute. While it only waits (for its children to
end, for the next attempt, for a short timer) it releases the slot, and takes one again before code executes. Slots are
granted first come, first served. The worker's search for new runs queues for a slot like a run, so that neither the
runs in memory nor those in the database starve.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from perdure.engine.execution.clock import Clock, SystemClock
from perdure.engine.execution.interfaces import Drained

Waiter = asyncio.Future[None]


class Slots:
    """At most `most` slots; `wake` is called when the search for new runs is granted one."""

    def __init__(self, most: int, wake: Callable[[], None], clock: Clock | None = None) -> None:
        self.most = most
        self.clock = clock or SystemClock()
        self.taken = 0  # held by runs, by runs that are being leased, or by the search
        self._wake = wake
        self._queue: OrderedDict[Waiter, None] = OrderedDict()
        self._search: Waiter | None = None  # the search's place in the queue, or the slot it was granted
        self._idle: set[Waiter] = set()
        self._draining = False

    @property
    def waiting(self) -> int:
        """Return the length of the queue for a slot."""
        return len(self._queue)

    @property
    def idle(self) -> int:
        """Return the number of runs that wait for something else, without a slot."""
        return len(self._idle)

    # For the worker.

    def reserve(self, count: int) -> "list[Slot]":
        """Return at most `count` slots for runs that are about to be leased; the queue is served first."""
        self._grant()
        slots: list[Slot] = []
        if self.searching is not None and count:
            self._search = None
            slots.append(Slot(self))
        while len(slots) < count and self._is_free():
            self.taken += 1
            slots.append(Slot(self))
        return slots

    def queue_search(self) -> Waiter:
        """Queue the search for a slot, once, because no slot is free; the future is done when it gets one."""
        if self._search is None:
            self._search = self._enqueue()
            self._grant()
        return self._search

    @property
    def searching(self) -> Waiter | None:
        """Return the slot that the search was granted and has not used, or None."""
        return self._search if self._search is not None and self._search.done() else None

    def end_search(self, granted: Waiter | None) -> None:
        """Release the slot that was granted before the search started, if the search did not use it."""
        if granted is not None and granted is self._search:
            self._search = None
            self.release()

    def drain(self) -> None:
        """Grant no more slots: runs that wait without one get `Drained` and are released for other workers."""
        self._draining = True
        if self._search is not None:
            search, self._search = self._search, None
            if search.done():
                self.release()
            else:
                self._queue.pop(search, None)
                search.cancel()  # no code would retrieve an error
        for waiter in (*self._idle, *self._queue):
            if not waiter.done():
                waiter.set_exception(Drained("the worker stops"))
        self._queue.clear()

    # For slots.

    async def take(self) -> None:
        """Wait for a slot in the queue and take it. Raises `Drained` if the worker stops."""
        if self._draining:
            raise Drained("the worker stops")
        if self._is_free():
            self.taken += 1
            return
        waiter = self._enqueue()
        try:
            await waiter
        except BaseException:
            self._queue.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release()  # granted and cancelled at the same time
            raise

    def release(self) -> None:
        """Release a slot."""
        self.taken -= 1
        self._grant()

    async def wait_idle(self, waiter: Waiter) -> None:
        """Wait for something without a slot. Raises `Drained` if the worker stops."""
        if self._draining:
            waiter.cancel()
            raise Drained("the worker stops")
        self._idle.add(waiter)
        try:
            await waiter
        finally:
            self._idle.discard(waiter)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # retrieved, so that asyncio does not warn if the run was cancelled as well

    def _enqueue(self) -> Waiter:
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._queue[waiter] = None
        return waiter

    def _is_free(self) -> bool:
        return not self._draining and not self._queue and self.taken < self.most

    def _grant(self) -> None:
        while self._queue and self.taken < self.most and not self._draining:
            waiter, _ = self._queue.popitem(last=False)
            if waiter.done():  # cancelled; `take` is about to remove it
                continue
            self.taken += 1
            waiter.set_result(None)
            if waiter is self._search:
                self._wake()


class Slot:
    """The slot of one run: held at first, released while the run waits and taken again afterwards."""

    __slots__ = ("_slots", "held", "idling")

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.held = True
        self.idling = False  # in a wait that may take long

    def rest(self) -> None:
        """Release the slot, if it is held; no code may execute until `resume()`."""
        if self.held:
            self.held = False
            self._slots.release()

    async def resume(self) -> None:
        """Take a slot again, if none is held. Raises `Drained` if the worker stops."""
        if not self.held:
            await self._slots.take()
            self.held = True

    async def idle(self, until: Waiter) -> None:
        """Wait without a slot, then take one again. Raises `Drained` if the worker stops."""
        self.rest()
        self.idling = True
        try:
            await self._slots.wait_idle(until)
        finally:
            self.idling = False
        await self.resume()

    async def pause(self, seconds: float) -> None:
        """Wait for some time without a slot, then take one again. Raises `Drained` if the worker stops."""
        over: Waiter = asyncio.get_running_loop().create_future()
        timer = self._slots.clock.call_later(seconds, _finish, over)
        try:
            await self.idle(over)
        finally:
            timer.cancel()


def _finish(over: Waiter) -> None:
    if not over.done():
        over.set_result(None)
