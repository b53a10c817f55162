"""The App of a test: the real engine with a clock of its own, in memory or on a database."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack, cast

from perdure.brokers.publishing import Publisher
from perdure.brokers.subscription import Subscription
from perdure.codecs.pipeline import Codecs
from perdure.engine.api.app import App
from perdure.engine.api.database import Database
from perdure.engine.api.run_info import RunInfo, WaitInfo
from perdure.engine.api.workflow import Workflow
from perdure.engine.execution.clock import Clock
from perdure.engine.interception import Interceptor
from perdure.engine.replay.context import ATTEMPT
from perdure.engine.worker.clock import DatabaseClock
from perdure.engine.worker.relay import PublishFunction
from perdure.engine.worker.retention import Retention
from perdure.engine.worker.worker import Worker
from perdure.errors import ConfigurationError, EngineError, RunNotFoundError, StalledError
from perdure.hooks import Hook
from perdure.metrics import Meter
from perdure.model.durations import Duration, seconds
from perdure.model.limits import LEASE_MAX_SEC
from perdure.model.states import TERMINAL
from perdure.storage.contract import Storage
from perdure.storage.stores import SQLStorage, shift_clock, stop_clock
from perdure.testing.clock import TestClock
from perdure.testing.completion_order import current_order
from perdure.testing.databases import TestDatabase
from perdure.testing.observed import ObservedActivities, unobserved
from perdure.testing.reference import Reference, World
from perdure.testing.stubs import only_stubs

SPAN_SEC = 60.0  # how long the leases of a test App are renewed at first while the clock is about to jump
STUCK_MAX = 3  # tries without progress after which a test does not wait for a run any more


class AppSettings(TypedDict, total=False):
    """The settings of `App`, which a test App takes as well."""

    workflows: Sequence[Workflow[..., Any]] | None
    max_runs: int
    max_activities: int
    max_threads: int
    max_cached_runs: int
    lease: Duration
    drain_timeout: Duration
    transaction_timeout: Duration
    retention: Retention | None
    publisher: str | PublishFunction | Publisher | None
    subscriptions: Sequence[Subscription]
    codec: Codecs | None
    hooks: Sequence[Hook]
    interceptors: Sequence[Interceptor]
    metrics: Meter | None
    worker_id: str | None


class TestApp(App):
    """An App for tests: `async with TestApp() as app:`.

    - `database`: a database URL or an open storage (default: None, in memory). On PostgreSQL and MySQL the tables are
      in a new schema or database, which is dropped at the end.
    - `clock`: the clock of another test App, to share it (default: a clock of its own).
    - `stall_timeout`: real time after which a wait for a run that cannot end raises `StalledError` (default: 1 second).
    - `strict`: raise `StubError` for activities without a stub (default: False).
    - all settings of `App`; `drain_timeout` is 1 second by default.

    While the test waits for a run, and every run only waits for a time, the clock jumps to the next due moment; see
    `TestClock`.
    """

    __test__ = False  # not a test, although its name begins like one

    def __init__(
        self,
        database: str | Storage | None = None,
        *,
        clock: TestClock | None = None,
        stall_timeout: Duration = 1,
        strict: bool = False,
        **settings: Unpack[AppSettings],
    ) -> None:
        self.clock = TestClock() if clock is None else clock
        self.clock.stall_sec = seconds(stall_timeout, "TestApp(stall_timeout=)", positive=True)
        settings.setdefault("drain_timeout", 1)
        given = cast(Storage, Reference(World(lambda: self.clock.now))) if database is None else database
        super().__init__(given, **settings)
        del database, given  # a traceback shows arguments, and a URL may have a password
        self.observations = self.clock.observations
        self._strict = strict
        self._shift = timedelta(0)  # of the storage's clock, before the first jump

    def _new_database(self, given: str | Storage) -> Database:
        return TestDatabase(given, type(self).__name__)

    def _new_clock(self) -> Clock:
        return self.clock

    async def _enter(self, opening: AsyncExitStack) -> None:
        await self._set_clock(opening)
        opening.enter_context(self.observations.of(self._opened))
        self.clock.join(self)
        opening.callback(self.clock.leave, self)
        if self._strict:
            opening.enter_context(only_stubs())
        await super()._enter(opening)

    async def _set_clock(self, opening: AsyncExitStack) -> None:
        """Let the storage follow the clock; a new clock starts at the time of the database."""
        storage = self._opened
        if isinstance(storage, SQLStorage):
            now = await storage.now()
            if self.clock.is_new:
                self.clock.set(now)
            self._shift = self.clock.now - now - self.clock.ahead
            opening.callback(shift_clock, storage, timedelta(0))
            opening.callback(stop_clock, storage, None)
            self._move_storage()
        elif isinstance(world := getattr(storage, "world", None), World):
            opening.callback(setattr, world, "clock", world.clock)
            world.clock = lambda: self.clock.now
        else:
            raise ConfigurationError(
                f"TestApp(…) cannot move the clock of {storage!r}: use a database URL, a storage that open_storage() "
                "returned, or a Reference"
            )

    async def _start_worker(self, worker: Worker) -> None:
        order = current_order()
        worker.host.database_clock = _TestTime(self._opened, self.clock)
        complete = None if order is None else order.turn(self.observations)
        worker.host.execute_with(ObservedActivities(worker.host.activities, self.observations, complete))
        await super()._start_worker(worker)

    async def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        """Wait until a run has ended, while the clock jumps, and return its result as JSON."""
        if ATTEMPT.get() is not None:  # the test does not wait, but an activity of a run
            with self.observations.pausing():
                return await super().finished(instance_id, timeout)
        with self.clock.awaiting(self, instance_id) as stalled:
            ended = asyncio.create_task(super().finished(instance_id, timeout))
            try:
                either: list[asyncio.Future[Any]] = [ended, stalled]
                await asyncio.wait(either, return_when="FIRST_COMPLETED")
                if not ended.done():
                    stalled.result()
                return ended.result()
            finally:
                ended.cancel()
                await asyncio.wait([ended])

    # For the clock.

    def clock_moved(self) -> None:
        """Set the clock of the storage, and look for due work."""
        self._move_storage()
        if (worker := getattr(self, "_worker", None)) is not None:
            worker.wake()
            if worker.relay is not None:
                worker.relay.wake()

    def _move_storage(self) -> None:
        if isinstance(self._opened, SQLStorage):
            shift_clock(self._opened, self._shift + self.clock.ahead)
            stop_clock(self._opened, self.clock.stopped_at)

    async def next_due(self, horizon: float | None, *, ticks: bool) -> datetime | None:
        """Return when work is due, with `ticks` also that of scheduled workflows; None if nothing is.

        The clock jumps at most `horizon` seconds. The leases of runs that execute code outlast the jump, so they are
        not due.
        """
        dues = self._worker.work_loop.cron.next_ticks() if ticks else []
        with unobserved():
            dues += filter(None, [await self._next_work(horizon)])
        return min(dues, default=None)

    async def _next_work(self, horizon: float | None) -> datetime | None:
        """Return when work is due, without the leases of this worker, which are renewed for longer and longer times."""
        heartbeat, span = self._worker.heartbeat, min(LEASE_MAX_SEC / 2, SPAN_SEC if horizon is None else horizon)
        while True:
            holds = await heartbeat.outlast(span, self._opened)
            due = await self._opened.next_work_at()
            if not holds or due is None or horizon is not None or due < self.clock.now + timedelta(seconds=span):
                return due
            span *= 4
            if span > LEASE_MAX_SEC / 2:
                return None

    async def has_ended(self, instance_id: str) -> bool:
        """Return whether a run has ended, or does not exist."""
        with unobserved():
            (row,) = await self._opened.get_instances([instance_id])
        return row is None or row.status in TERMINAL

    async def is_stuck(self, instance_id: str) -> bool:
        """Return whether a run has failed to make progress several times."""
        with unobserved():
            (stuck,) = await self._opened.get_stuck([instance_id])
        return stuck is not None and stuck.tries >= STUCK_MAX

    async def why_stalled(self, instance_id: str) -> StalledError:
        """Return an error that names a run and what it waits for."""
        try:
            with unobserved():
                return StalledError(_stalled(await self.info(instance_id)))
        except (EngineError, RunNotFoundError) as error:
            return StalledError(f"run {instance_id!r} cannot end: {error}")


class _TestTime(DatabaseClock):
    """The time of a test's database, which is exactly that of the clock."""

    def __init__(self, storage: Storage, clock: TestClock) -> None:
        super().__init__(storage, clock)
        self._test_clock = clock

    def now(self) -> datetime:
        return self._test_clock.now

    async def set(self) -> None:
        """Read nothing: the database follows the clock."""


def _stalled(run: RunInfo) -> str:
    name = f"run {run.id!r} ({run.workflow})"
    if run.stuck is not None:
        return f"{name} makes no progress, however often it is retried: {run.stuck.reason}"
    if not run.waiting_for:
        return f"{name} is {run.status} and no worker executes it: does the TestApp serve this workflow?"
    waits = ", ".join(map(_described, run.waiting_for))
    return (
        f"{name} cannot end: it waits for {waits}, and nothing else is due. Send what it waits for before you wait for "
        "its result, or in a concurrent task"
    )


def _described(wait: WaitInfo) -> str:
    until = "without a timeout" if wait.until is None else f"until {wait.until:%Y-%m-%d %H:%M:%S} UTC"
    return f"{wait.kind} {wait.name!r} {until}"
