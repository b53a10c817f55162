"""The virtual time of a play, and the clock that each of its processes has.

The time stands still while anything can be done, and is moved by the play. The clock of a process that has died or is
paused calls nothing, like the process itself.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import datetime
from functools import partial
from types import TracebackType

from perdure.engine.execution.clock import SystemClock


class Timeline:
    """The time of a play. `follow` is called with it at once and whenever it moves."""

    def __init__(self, began: datetime, follow: Callable[[datetime], object] = lambda now: None) -> None:
        self._began = self._now = began
        self._follow = follow
        follow(began)

    def now(self) -> datetime:
        """Return the time."""
        return self._now

    def seconds(self) -> float:
        """Return the seconds since the play began."""
        return (self._now - self._began).total_seconds()

    def move_to(self, due: datetime) -> None:
        """Move the time forwards."""
        self._now = max(self._now, due)
        self._follow(self._now)


class Timer:
    """A call at some time, unless it is cancelled."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Drop the call."""
        self.call = None


class ProcessClock:
    """The clock of one process."""

    is_real = False  # so that no thread can wait for it
    rest = staticmethod(SystemClock.rest)  # between rounds of work that no run waits for

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def steady(self) -> float:
        """Return the seconds since the play began."""
        return self._timeline.seconds()

    async def sleep(self, seconds: float, /) -> None:
        """Wait until the time is moved so far."""
        over = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, partial(_finish, over))
        try:
            await over
        finally:
            timer.cancel()

    def timeout(self, seconds: float | None, /) -> "VirtualTimeout":
        """Return a context manager that cancels its block when the time is moved so far."""
        return VirtualTimeout(self, seconds)

    def call_later(self, seconds: float, callback: Callable[..., object], /, *args: object) -> Timer:
        """Call a function when the time is moved so far."""
        timer = Timer(partial(callback, *args))
        heapq.heappush(self._timers, (self.steady() + seconds, next(self._numbers), timer))
        return timer

    def next_due(self) -> float | None:
        """Return the time of the next call, in seconds since the play began; None if there is none."""
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def fire(self) -> bool:
        """Make the calls that are due; return whether there were any."""
        fired = False
        while (due := self.next_due()) is not None and due <= self.steady():
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                asyncio.get_running_loop().call_soon(call)
                fired = True
        return fired


class VirtualTimeout:
    """A timeout by the clock of a process; it expires like one of asyncio, as soon as the time is moved."""

    def __init__(self, clock: ProcessClock, seconds: float | None) -> None:
        self._clock, self._seconds = clock, seconds
        self._inner = asyncio.timeout(None)
        self._timer: Timer | None = None

    async def __aenter__(self) -> "VirtualTimeout":
        await self._inner.__aenter__()
        if self._seconds is not None:
            self._timer = self._clock.call_later(self._seconds, self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._inner.__aexit__(kind, error, trace)

    def _expire(self) -> None:
        self._inner.reschedule(asyncio.get_running_loop().time())

    def expired(self) -> bool:
        """Return whether the time was over before the block ended."""
        return self._inner.expired()


def _finish(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)
