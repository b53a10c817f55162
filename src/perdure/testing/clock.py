"""The clock of a test: it runs like a real one, and jumps over the time in which nothing happens.

While a test waits for a run, and every run only waits for a time, the clock jumps to the next due moment. While the
test does something else, the clock does not jump, so that a test can send an event before a timeout is over.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from perdure.engine.execution.clock import steady
from perdure.engine.replay.context import ATTEMPT
from perdure.errors import EngineError, StalledError
from perdure.model.durations import Duration, span
from perdure.testing.observed import Observations
from perdure.testing.timers import Timeout, Timer

TURNS = 10  # of the event loop in which nothing must happen before a jump
MOMENT_SEC = 0.0005  # real time in which nothing must happen before a jump
GRACE_SEC = 0.1  # real time in which an activity may end before `advance()` moves the clock
JUMPS_MAX = 10_000  # in one wait for a result
STUCK_JUMPS = 20  # after so many jumps, look whether the awaited run is stuck
TICK = timedelta(milliseconds=1)  # the precision of the clocks of all databases
_YEAR_ONE = datetime(1, 1, 1, tzinfo=UTC)


class Moved(Protocol):
    """An App whose time is that of a clock."""

    observations: Observations

    def clock_moved(self) -> None:
        """Set the clock of the storage, and look for due work."""

    async def next_due(self, horizon: float | None, *, ticks: bool) -> datetime | None:
        """Return when work is due, with `ticks` also that of scheduled workflows; None if nothing is.

        The clock jumps at most `horizon` seconds. The leases of runs that execute code outlast the jump, so they are
        not due.
        """

    async def why_stalled(self, instance_id: str) -> StalledError:
        """Return an error that names a run and what it waits for."""

    async def has_ended(self, instance_id: str) -> bool:
        """Return whether a run has ended."""

    async def is_stuck(self, instance_id: str) -> bool:
        """Return whether a run has failed to make progress several times."""


class _Wait:
    """A wait of the test for a run."""

    def __init__(self, app: Moved, instance_id: str) -> None:
        self.app = app
        self.instance_id = instance_id
        self.stalled: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class TestClock:
    """The clock of one or more test Apps, and of nothing else in the process.

    - `start`: the time at which it starts (default: the current time).
    """

    __test__ = False  # not a test, although its name begins like one
    is_real = False

    def __init__(self, start: datetime | None = None) -> None:
        if start is not None and start.tzinfo is None:
            raise ValueError(f"the clock of a test starts at a datetime with a time zone, not at {start!r}")
        self._is_new = start is None
        self._ahead = 0.0  # how far it has jumped, in seconds
        self._frozen_at: float | None = None  # by `steady()`
        self._epoch = (start or datetime.now(UTC)).astimezone(UTC) - timedelta(seconds=self.steady())
        self.observations = Observations()  # of all apps that follow this clock
        self.stall_sec = 1.0  # real time without a change after which a wait for a run fails
        self._timers: set[Timer] = set()
        self._apps: list[Moved] = []
        self._waits: list[_Wait] = []
        self._mover: asyncio.Task[None] | None = None
        self._busy = 0  # calls of `advance()` and `run_until_idle()`

    # For tests.

    @property
    def now(self) -> datetime:
        """Return the time of this clock, in UTC."""
        return self._epoch + timedelta(seconds=self.steady())

    @property
    def frozen(self) -> bool:
        """Return whether the clock stands still."""
        return self._frozen_at is not None

    def freeze(self) -> None:
        """Let the clock stand still, at a whole millisecond. Only `advance()` moves it then."""
        if self._frozen_at is None:
            at = self.steady()
            beyond = (self._epoch + timedelta(seconds=at) - _YEAR_ONE) % TICK
            self._frozen_at = at - beyond.total_seconds()
            self._moved()

    def unfreeze(self) -> None:
        """Let the clock run again, and jump."""
        if self._frozen_at is not None:
            self._ahead = self._frozen_at - steady()
            self._frozen_at = None
            self._moved()
            self._start_mover()

    async def advance(self, duration: Duration) -> None:
        """Move the clock forward, and let everything happen that is due until then, each thing at its time.

        `duration` is in seconds or a timedelta. Returns when the runs only wait again, or execute code of activities
        that does not end. Every tick of a scheduled workflow runs.
        """
        until = self.steady() + span(duration, "advance()").total_seconds()
        with self._moving():
            while await self._step(until, ticks=True):
                pass
            await self._settle(patient=False)

    async def run_until_idle(self) -> None:
        """Jump until nothing is due any more: all runs have ended, or wait for events or messages without a timeout.

        Raises `StalledError` if that takes more than 10,000 jumps. Scheduled workflows don't count.
        """
        if self.frozen:
            raise EngineError("run_until_idle() was called while the clock is frozen: call unfreeze(), or advance()")
        with self._moving():
            for _ in range(JUMPS_MAX):
                if not await self._step(None, ticks=False):
                    return
        raise StalledError(f"runs still wait for a time after {JUMPS_MAX} jumps of the clock: do they ever end?")

    # For the engine.

    def steady(self) -> float:
        """Return seconds since an arbitrary start."""
        return self._frozen_at if self._frozen_at is not None else steady() + self._ahead

    async def sleep(self, seconds: float, /) -> None:
        """Wait until so much time of this clock has passed. An activity that sleeps does not keep it from jumping."""
        if ATTEMPT.get() is not None:
            with self.observations.pausing():
                await self._wait(seconds, awaited=True)
        else:
            await self._wait(seconds, awaited=True)

    async def rest(self, seconds: float, /) -> None:
        """Wait until so much time of this clock has passed, but don't make it jump for that."""
        await self._wait(seconds, awaited=False)

    def timeout(self, seconds: float | None, /) -> Timeout:
        """Return a context manager like `asyncio.timeout()`, by this clock."""
        return Timeout(seconds, partial(self._schedule, awaited=True))

    def call_later(self, seconds: float, callback: Callable[..., object], /, *args: object) -> Timer:
        """Call a function when so much time of this clock has passed."""
        return self._schedule(seconds, lambda: callback(*args), awaited=True)

    async def _wait(self, seconds: float, *, awaited: bool) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._schedule(seconds, lambda: None if over.done() else over.set_result(None), awaited=awaited)
        try:
            await over
        finally:
            timer.cancel()

    def _schedule(self, seconds: float, call: Callable[[], object], *, awaited: bool) -> Timer:
        timer = Timer(self.steady() + seconds, call, awaited=awaited, forget=self._timers.discard)
        self._timers.add(timer)
        timer.arm(None if self.frozen and seconds > 0 else seconds)
        self.observations.events += 1
        return timer

    # For the apps.

    @property
    def ahead(self) -> timedelta:
        """Return how far the clock is ahead of the real time, compared with its start."""
        return timedelta(seconds=self._ahead)

    @property
    def is_new(self) -> bool:
        """Return whether no app has followed this clock yet, and no test has set it."""
        return self._is_new and not self._ahead and not self.frozen

    @property
    def stopped_at(self) -> datetime | None:
        """Return the time at which the clock stands still, or None."""
        return self.now if self.frozen else None

    def set(self, now: datetime) -> None:
        """Set the time before anything has been measured by this clock, to that of a database."""
        self._epoch = now - timedelta(seconds=self.steady())

    def join(self, app: Moved) -> None:
        """Let an open app follow this clock."""
        self._apps.append(app)
        self._is_new = False

    def leave(self, app: Moved) -> None:
        """Forget an app that closes."""
        self._apps.remove(app)

    @contextmanager
    def awaiting(self, app: Moved, instance_id: str) -> "Iterator[asyncio.Future[None]]":
        """Jump while the block waits for a run; the future raises `StalledError` if the run cannot end."""
        wait = _Wait(app, instance_id)
        self._waits.append(wait)
        self._start_mover()
        try:
            yield wait.stalled
        finally:
            self._waits.remove(wait)
            wait.stalled.cancel()
            if not self._waits and self._mover is not None:
                self._mover.cancel()

    # Moving.

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Keep the clock from jumping for a wait while the test moves it."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    def _start_mover(self) -> None:
        if self._waits and not self.frozen and (self._mover is None or self._mover.cancelling()):
            self._mover = asyncio.get_running_loop().create_task(self._jump_for_waits(), name="perdure test clock")

    async def _jump_for_waits(self) -> None:
        """Jump while tests wait, until one of their runs cannot end."""
        try:
            jumps, idle_since, changes = 0, time.monotonic(), -1
            while self._waits and not self.frozen:
                moved = not self._busy and await self._step(None, ticks=False)
                if moved or self._busy or changes != self.observations.changes or self.observations.is_executing:
                    jumps, idle_since, changes = jumps + moved, time.monotonic(), self.observations.changes
                if moved and jumps % STUCK_JUMPS == 0:
                    await self._fail_stuck(jumps)
                elif not moved and time.monotonic() - idle_since > self.stall_sec:
                    await self._fail(list(self._waits))
                elif not moved:
                    await asyncio.sleep(MOMENT_SEC)
        except Exception as error:
            for wait in self._waits:
                if not wait.stalled.done():
                    wait.stalled.set_exception(error)
        finally:
            if self._mover is asyncio.current_task():
                self._mover = None

    async def _fail_stuck(self, jumps: int) -> None:
        """Fail the waits for runs that don't make progress however often they are retried."""
        stuck = [wait for wait in self._waits if jumps >= JUMPS_MAX or await wait.app.is_stuck(wait.instance_id)]
        await self._fail(stuck)

    async def _fail(self, waits: list[_Wait]) -> None:
        for wait in waits:
            if not wait.stalled.done() and not await wait.app.has_ended(wait.instance_id):
                error = await wait.app.why_stalled(wait.instance_id)
                if not wait.stalled.done():
                    wait.stalled.set_exception(error)

    async def _step(self, until: float | None, *, ticks: bool) -> bool:
        """Jump to the next due moment, or to `until` if nothing is due before; return False if that was the last jump.

        Without `until`, wait for the code of activities, and return False if nothing is due.
        """
        patient, idle_since, changes = until is None, time.monotonic(), -1
        while True:
            await self._settle(patient=patient)
            events = self.observations.events
            due = await self._next(until, ticks=ticks)
            if patient and await self._any_ended():
                return False
            if due is not None and due <= self.steady():
                if changes != self.observations.changes:
                    idle_since, changes = time.monotonic(), self.observations.changes
                if time.monotonic() - idle_since < self.stall_sec:
                    await self._wake()
                    continue
                due = None  # no worker takes it
            target = due if until is None or (due is not None and due < until) else until
            if target is None:
                return False
            if self.observations.events == events:
                self._jump(target - self.steady())
                return until is None or target < until

    async def _any_ended(self) -> bool:
        """Return whether an awaited run has ended, so that the test is about to continue."""
        return any([await wait.app.has_ended(wait.instance_id) for wait in list(self._waits)])

    async def _next(self, until: float | None, *, ticks: bool) -> float | None:
        """Return when something is due next, by `steady()`."""
        dues = [timer.due for timer in self._timers if timer.awaited]
        ends = dues if until is None else [*dues, until]
        horizon = max(0.0, min(ends) - self.steady()) if ends else None
        for app in self._apps:
            if (at := await app.next_due(horizon, ticks=ticks)) is not None:
                dues.append((at - self._epoch) / timedelta(seconds=1))
        return min(dues, default=None)

    async def _wake(self) -> None:
        """Let the workers do what is due, and give them a moment."""
        for app in self._apps:
            app.clock_moved()
        await asyncio.sleep(MOMENT_SEC)

    async def _settle(self, *, patient: bool) -> None:
        """Wait until nothing happens; if not `patient`, only a moment for the code of activities."""
        calm, events, seen = 0, -1, self.observations
        while True:
            if seen.operations or events != seen.events or (patient and seen.is_executing):
                calm, events = 0, seen.events
                await asyncio.sleep(MOMENT_SEC if seen.operations or seen.is_executing else 0)
            elif not patient and seen.executing_since(time.monotonic() - GRACE_SEC):
                calm = 0
                await asyncio.sleep(MOMENT_SEC)
            elif calm > TURNS:
                return
            else:
                calm += 1
                await asyncio.sleep(MOMENT_SEC if calm > TURNS else 0)

    def _jump(self, seconds: float) -> None:
        if self._frozen_at is not None:
            self._frozen_at += max(0.0, seconds)
        else:
            self._ahead += max(0.0, seconds)
        self._moved()

    def _moved(self) -> None:
        """Let everything that depends on this clock follow it."""
        now = self.steady()
        for timer in sorted(self._timers, key=lambda each: each.due):
            timer.arm(None if self.frozen and timer.due > now else timer.due - now)
        for app in self._apps:
            app.clock_moved()
