"""The calls that a test's clock has scheduled, and timeouts made of them."""

import asyncio
from collections.abc import Callable
from types import TracebackType


class Timer:
    """A call at a time of the clock.

    - `due`: when, by the clock's `steady()`.
    - `awaited`: whether a run or a caller waits for it, so that the clock may jump to it.
    """

    def __init__(self, due: float, call: Callable[[], object], *, awaited: bool, forget: "Callable[[Timer], None]"):
        self.due = due
        self.awaited = awaited
        self._call = call
        self._forget = forget
        self._handle: asyncio.Handle | None = None

    def arm(self, seconds: float | None) -> None:
        """Fire after some real time; with None, not until the clock moves."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        loop = asyncio.get_running_loop()
        if seconds is not None:
            self._handle = loop.call_later(seconds, self._fire) if seconds > 0 else loop.call_soon(self._fire)

    def _fire(self) -> None:
        self._forget(self)
        self._call()

    def cancel(self) -> None:
        """Drop the call."""
        if self._handle is not None:
            self._handle.cancel()
        self._forget(self)


class Timeout:
    """Like `asyncio.timeout()`, by the clock of a test."""

    def __init__(self, seconds: float | None, schedule: Callable[[float, Callable[[], object]], Timer]) -> None:
        self._seconds = seconds
        self._schedule = schedule
        self._timer: Timer | None = None
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> "Timeout":
        await self._limit.__aenter__()
        if self._seconds is not None:
            self._timer = self._schedule(self._seconds, self._expire)
        return self

    def _expire(self) -> None:
        self._limit.reschedule(asyncio.get_running_loop().time())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def expired(self) -> bool:
        """Return whether the time was over before the block ended."""
        return self._limit.expired()
