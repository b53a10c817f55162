"""The processes of a play: workers, and the client that executes the scenario."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from perdure.codecs.pipeline import Codecs
from perdure.engine.api.app import App
from perdure.engine.api.client import Client
from perdure.engine.api.workflow import Workflow
from perdure.engine.execution.clock import Clock
from perdure.engine.worker.activities import Executor
from perdure.engine.worker.owners import worker_of
from perdure.engine.worker.worker import Worker
from perdure.model.durations import Duration, span
from perdure.model.limits import LEASE_MAX_SEC
from perdure.model.records import WorkflowInstance
from perdure.storage.contract import Storage
from perdure.testing.crashes.outcomes import Raised
from perdure.testing.crashes.storage_proxy import Gate
from perdure.testing.crashes.virtual_clock import ProcessClock, Timeline

Scenario = Callable[[Any], Awaitable[object]]
Watch = Callable[[Executor], Executor]


@dataclass(frozen=True, slots=True)
class Settings:
    """What all plays of a scenario have in common."""

    scenario: Scenario
    setup: Callable[[], object] | None = None
    effects: Callable[[], object] | None = None
    workflows: Sequence[Workflow[..., Any]] | None = None
    uncompensated: frozenset[str] = frozenset()
    lease_sec: float = 15.0
    codec: Codecs | None = None


class ScenarioClock:
    """The clock of a scenario: `app.clock`. It moves by itself while the scenario waits for the result of a run."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.goal: datetime | None = None  # of `advance()`
        self.waits = 0  # for results, or until nothing is due
        self._reached: asyncio.Future[None] | None = None

    @property
    def now(self) -> datetime:
        """Return the time, in UTC."""
        return self._timeline.now()

    async def advance(self, duration: Duration) -> None:
        """Move the clock forward, and let everything happen that is due until then, each thing at its time."""
        self.goal = self.now + span(duration, "advance()")
        await self._until_reached()

    async def run_until_idle(self) -> None:
        """Move the clock until nothing is due any more."""
        self.waits += 1
        try:
            await self._until_reached()
        finally:
            self.waits -= 1

    async def _until_reached(self) -> None:
        self._reached = asyncio.get_running_loop().create_future()
        try:
            await self._reached
        finally:
            self.goal = self._reached = None

    def end(self) -> bool:
        """Let `advance()` or `run_until_idle()` return; return False if neither was called."""
        if self._reached is None or self._reached.done():
            return False
        self._reached.set_result(None)
        return True


class _Played(Client):
    """A client whose clock is virtual."""

    clock: ScenarioClock
    process_clock: ProcessClock

    def _new_clock(self) -> Clock:
        return self.process_clock

    async def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        """Wait until a run has ended, while the time is moved."""
        self.clock.waits += 1
        try:
            return await super().finished(instance_id, timeout)
        finally:
            self.clock.waits -= 1


class PlayedClient(_Played):
    """A client that executes the scenario."""

    def __init__(self, storage: Storage, timeline: Timeline, settings: Settings) -> None:
        self.clock, self.process_clock = ScenarioClock(timeline), ProcessClock(timeline)
        super().__init__(storage, codec=settings.codec)


class PlayedApp(_Played, App):
    """A worker, which may execute the scenario, too."""

    def __init__(self, storage: Storage, timeline: Timeline, settings: Settings, name: str, watch: Watch) -> None:
        self.clock, self.process_clock = ScenarioClock(timeline), ProcessClock(timeline)
        self._watch = watch
        lease, served = settings.lease_sec, settings.workflows
        codec = settings.codec
        App.__init__(self, storage, workflows=served, lease=lease, drain_timeout=0, codec=codec, worker_id=name)

    async def _start_worker(self, worker: Worker) -> None:
        worker.host.execute_with(self._watch(worker.host.activities))
        await super()._start_worker(worker)

    def is_busy(self) -> bool:
        """Return whether it executes code, or will do so at once."""
        return self._worker.slots.taken > 0

    def executes(self, run: WorkflowInstance) -> bool:
        """Return whether it executes a run that it has leased."""
        leased = run.locked_by is not None and worker_of(run.locked_by) == self.worker_id
        return leased and self._worker.executor.is_executing(run.instance_id)

    async def outlast(self, span: timedelta) -> None:
        """Renew the leases of the runs that it executes, because the time is about to move."""
        await self._worker.heartbeat.outlast(min(span.total_seconds(), LEASE_MAX_SEC / 2), self._opened)

    def look(self) -> None:
        """Look for work."""
        self._worker.wake()

    def next_ticks(self) -> list[datetime]:
        """Return when it starts scheduled runs next."""
        return self._worker.work_loop.cron.next_ticks()


class Process:
    """A client or an App behind a gate, with the scenario if it executes it, in a task and a context of their own."""

    def __init__(self, client: PlayedApp | PlayedClient, gate: Gate, scenario: Scenario | None) -> None:
        self.client, self.gate = client, gate
        self.result: asyncio.Task[object] | None = None  # of the scenario
        self._scenario = scenario
        self._closing = asyncio.Event()
        self._opened = asyncio.Event()
        self._task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        try:
            async with self.client as opened:
                if self._scenario is not None:
                    self.result = asyncio.create_task(_result_of(self._scenario, opened))
                self._opened.set()
                await self._closing.wait()
                if self.result is not None and not self.result.done():
                    self.result.cancel()
                    await asyncio.wait([self.result])
        finally:
            self._opened.set()

    async def opened(self) -> "Process":
        """Wait until it is open."""
        await self._opened.wait()
        if self._task.done():
            self._task.result()
        return self

    @property
    def is_live(self) -> bool:
        """Return whether it can do something now."""
        return not (self._closing.is_set() or self.gate.is_dead or self.gate.is_paused)

    @property
    def clock(self) -> ProcessClock:
        """Return its clock."""
        return self.client.process_clock

    @property
    def is_busy(self) -> bool:
        """Return whether it executes runs or uses the storage."""
        return self.gate.calls > 0 or (isinstance(self.client, PlayedApp) and self.client.is_busy())

    async def outlast(self, span: timedelta) -> None:
        """Let a worker renew its leases, because the time is about to move."""
        if isinstance(self.client, PlayedApp):
            await self.client.outlast(span)

    def look(self) -> None:
        """Let a worker look for work."""
        if isinstance(self.client, PlayedApp):
            self.client.look()

    def next_ticks(self) -> list[datetime]:
        """Return when a worker starts scheduled runs next."""
        return self.client.next_ticks() if isinstance(self.client, PlayedApp) else []

    async def close(self) -> None:
        """Close it; what a dead worker still tries does not reach the storage."""
        self.gate.is_closing = True
        self._closing.set()
        await asyncio.wait([self._task])
        self._task.result()


async def _result_of(scenario: Scenario, client: Client) -> object:
    """Return a copy of what the scenario returns, or its error; those of `pytest.fail()` are no `Exception`."""
    try:
        return copy.deepcopy(await scenario(client))
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return Raised(error)
