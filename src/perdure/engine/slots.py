"""Slots: how many runs of a worker execute code at the same time.

A run holds a slot while its body, an activity or a compensation may execute. While it only waits (for its children to
end, for the pause between two attempts, for a short timer) it gives the slot back, and it takes one again before any
code executes. Slots are granted first come, first served. The worker's search for new runs queues for a slot like a run
does, so neither the runs in memory nor those in the database starve.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from perdure.engine.driven import Drained

Waiter = asyncio.Future[None]


class Slots:
    """At most `most` slots; `wake` is called when the search for new runs is granted one."""

    def __init__(self, most: int, wake: Callable[[], None]) -> None:
        self.most = most
        self.taken = 0  # held by runs, by runs that are being claimed, or by the search
        self._wake = wake
        self._queue: OrderedDict[Waiter, None] = OrderedDict()
        self._search: Waiter | None = None  # the search's place in the queue, or the slot it was granted
        self._idle: set[Waiter] = set()
        self._draining = False

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._queue)

    @property
    def idle(self) -> int:
        """How many runs wait for something else, without a slot."""
        return len(self._idle)

    # For the worker.

    def reserve(self, count: int) -> "list[Slot]":
        """Take up to `count` slots for runs that are being claimed; whoever waits for a slot comes first."""
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
        """There may be runs to claim, and no slot is free: take a place in the queue, once; done when it is granted."""
        if self._search is None:
            self._search = self._enqueue()
            self._grant()
        return self._search

    @property
    def searching(self) -> Waiter | None:
        """The slot that the search was granted and has not used."""
        return self._search if self._search is not None and self._search.done() else None

    def end_search(self, granted: Waiter | None) -> None:
        """Give back the slot that the search was granted before it began, if it found no use for it."""
        if granted is not None and granted is self._search:
            self._search = None
            self.give()

    def drain(self) -> None:
        """Grant no more slots: runs that wait without one are handed over."""
        self._draining = True
        if self._search is not None:
            granted, self._search = self._search.done(), None
            if granted:
                self.give()
        for waiter in (*self._idle, *self._queue):
            if not waiter.done():
                waiter.set_exception(Drained("the worker stops"))
        self._queue.clear()

    # For slots.

    async def take(self) -> None:
        """Take a slot, in turn. Raises `Drained` if the worker stops."""
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
                self.give()  # granted and cancelled at the same time
            raise

    def give(self) -> None:
        """A slot is free again."""
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
                waiter.exception()  # looked at, even if the run was cancelled at the same time

    def _enqueue(self) -> Waiter:
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._queue[waiter] = None
        return waiter

    def _is_free(self) -> bool:
        return not self._draining and not self._queue and self.taken < self.most

    def _grant(self) -> None:
        while self._queue and self.taken < self.most and not self._draining:
            waiter, _ = self._queue.popitem(last=False)
            if waiter.done():  # cancelled; it leaves the queue by itself a moment later
                continue
            self.taken += 1
            waiter.set_result(None)
            if waiter is self._search:
                self._wake()


class Slot:
    """The slot of one run: held from the start, given back and taken again as often as the run waits."""

    __slots__ = ("_slots", "held", "idling")

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.held = True
        self.idling = False  # waits for something that may take long

    def rest(self) -> None:
        """Give the slot back, if it is held: no code executes until `resume()`."""
        if self.held:
            self.held = False
            self._slots.give()

    async def resume(self) -> None:
        """Take a slot again, in turn. Raises `Drained` if the worker stops."""
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
        loop = asyncio.get_running_loop()
        over: Waiter = loop.create_future()
        timer = loop.call_later(seconds, _finish, over)
        try:
            await self.idle(over)
        finally:
            timer.cancel()


def _finish(over: Waiter) -> None:
    if not over.done():
        over.set_result(None)
