"""The clock of an App or Client: leases, pauses and timeouts are measured with it.

It is the time of the machine, except in tests (`perdure.testing`), which give each App a clock of its own. What depends
on real work stays in real time: polls and their pacing, draining, and the time limits of the database.
"""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def steady() -> float:
    """Return seconds since an arbitrary start, suspended time included: a suspended machine loses its leases."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)


class Timer(Protocol):
    """A call that was scheduled with `Clock.call_later`."""

    def cancel(self) -> None:
        """Drop the call."""


class Timeout(Protocol):
    """An asynchronous context manager that cancels its block after some time, like `asyncio.timeout()`."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...

    def expired(self) -> bool:
        """Return whether the time was over before the block ended."""


class Clock(Protocol):
    """How time passes for the runs of an App or Client. A clock of a test belongs to one event loop."""

    @property
    def is_real(self) -> bool:
        """Return whether this is the time of the machine, so that other threads can wait for it, too."""

    def steady(self) -> float:
        """Return seconds since an arbitrary start. They never decrease."""

    async def sleep(self, seconds: float, /) -> None:
        """Wait for some time that a run needs: until it is over, the run makes no progress."""

    async def rest(self, seconds: float, /) -> None:
        """Wait until the next round of work that is done now and then, and that no run waits for."""

    def timeout(self, seconds: float | None, /) -> Timeout:
        """Return a context manager that raises `TimeoutError` if its block takes longer; None means no limit."""

    def call_later(self, seconds: float, callback: Callable[..., object], /, *args: object) -> Timer:
        """Call a function on this event loop after some time that a run waits for."""


class SystemClock:
    """The clock of the machine."""

    is_real = True
    steady = staticmethod(steady)
    sleep = rest = staticmethod(asyncio.sleep)
    timeout = staticmethod(asyncio.timeout)

    @staticmethod
    def call_later(seconds: float, callback: Callable[..., object], /, *args: object) -> asyncio.TimerHandle:
        """Call a function on this event loop after some time."""
        return asyncio.get_running_loop().call_later(seconds, callback, *args)
