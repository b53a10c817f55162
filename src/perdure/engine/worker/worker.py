"""The worker: executes runs, and does its share of the work for all runs (timers, deliveries, cron ticks).

It is made of small parts, which `Worker` creates, starts and stops:

- `WorkLoop` finds due work; `Claiming` leases runs; `Listener` wakes them up.
- `RunExecutor` executes leased runs, each in a `RunTask`; `Heartbeat` renews their leases.
- `LeasedStarts` creates runs in this process and leases them at once.
- `OutboxRelay` publishes the outbox; retention deletes old data.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from perdure.engine.execution.clock import steady
from perdure.engine.execution.slots import Slots
from perdure.engine.worker.claiming import Claiming
from perdure.engine.worker.executor import RunExecutor
from perdure.engine.worker.gauges import Sampler
from perdure.engine.worker.heartbeat import Heartbeat
from perdure.engine.worker.hooks import Hooks
from perdure.engine.worker.host import WORK_LOOP, WorkerHost
from perdure.engine.worker.interception import new_activities
from perdure.engine.worker.listener import Listener
from perdure.engine.worker.log import seconds
from perdure.engine.worker.metering import MeteredActivities, lost_leases
from perdure.engine.worker.relay import OutboxRelay
from perdure.engine.worker.results import Results
from perdure.engine.worker.retention import sweep_for_ever
from perdure.engine.worker.settings import WorkerSettings
from perdure.engine.worker.starts import STARTS, LeasedStarts
from perdure.engine.worker.supervision import Supervised, Supervisor
from perdure.engine.worker.waiting import end_tasks, wait_unless
from perdure.engine.worker.work_loop import WorkLoop
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

LEASING_SEC = 3.0  # how long leases that are just being acquired may take when the worker stops
ENDING_SEC = 1.0  # how long the last log messages may take
NAMES_SHOWN = 5  # maximum number of workflows named in one log message

Work = Callable[[Supervised], Coroutine[Any, Any, None]]
Connect = Callable[[], AbstractAsyncContextManager[Storage]]


class Worker:
    """Executes at most `max_runs` runs at a time. `connect` opens a separate connection for the heartbeat."""

    def __init__(
        self,
        storage: Storage,
        settings: WorkerSettings,
        connect: Connect,
        *,
        supervisor: Supervisor,
        results: Results,
        hooks: Hooks,
        relay: OutboxRelay | None = None,
    ) -> None:
        self.hurried = asyncio.Event()  # a second signal: stop without waiting
        self._settings = settings
        self._supervisor = supervisor
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by what they do
        worker_id, lease_sec = settings.worker_id, settings.lease_sec
        clock = settings.clock
        limits = settings.max_activities, settings.max_threads, settings.transaction_sec, lease_sec, clock
        activities = new_activities(settings.interception, *limits)
        meter = settings.meter
        self.host = WorkerHost(
            storage,
            worker_id,
            supervisor=supervisor,
            results=results,
            hooks=hooks,
            activities=activities if meter is None else MeteredActivities(activities, meter),
            clock=clock,
            meter=meter,
        )
        self.heartbeat = Heartbeat(
            connect,
            worker_id,
            lease_sec,
            lambda lease: self.executor.lose(lease),
            supervisor.watch("heartbeat"),
            clock,
        )
        self.executor = RunExecutor(
            self.host,
            settings.workflows,
            self.heartbeat,
            settings.max_cached_runs,
            settings.interception,
            lost_leases(meter),
        )
        results.is_local = self.executor.is_executing
        self.slots = Slots(settings.max_runs, self.host.wake, clock)
        self.starts = LeasedStarts(storage, settings, self.slots, self.executor, supervisor.watch(STARTS))
        claiming = Claiming(storage, settings, self.slots, self.executor)
        self.work_loop = WorkLoop(self.host, settings, self.slots, claiming)
        self.listener = Listener(self.host, self.executor, self.heartbeat, relay)
        self.relay = relay
        self._sampler = None
        if meter is not None:
            self._sampler = Sampler(
                storage, meter, supervisor, executor=self.executor, slots=self.slots, activities=activities
            )

    def wake(self) -> None:
        """Look for work now, because this process has created some."""
        self.host.wake()

    def hint(self) -> None:
        """Look for work soon, because there may be some."""
        self.host.hint()

    def sent(self, channel: str) -> None:
        """Deliver a message that this process has sent."""
        self.executor.hint()
        self.host.sent(channel)

    # Starting.

    async def start(self) -> None:
        """Start the background tasks and look for work."""
        await self.work_loop.publish()
        self.heartbeat.start()
        self._tasks = {name: self._supervisor.start(name, work) for name, work in self._background_work().items()}
        if self.relay is not None:
            self.relay.start(self._supervisor)
        names = sorted(self._settings.workflows)
        log.info(
            "worker %s started, serving %d workflow%s%s",
            self.host.worker_id,
            len(names),
            "" if len(names) == 1 else "s",
            f": {', '.join(names[:NAMES_SHOWN])}{' …' if len(names) > NAMES_SHOWN else ''}" if names else "",
            extra={"worker": self.host.worker_id, "workflows": names},
        )

    def _background_work(self) -> dict[str, Work]:
        """Return the background tasks that end when the worker drains, by name."""
        work: dict[str, Work] = {"listener": self.listener.run, WORK_LOOP: self.work_loop.run}
        if self._sampler is not None:
            work["metrics"] = self._sampler.run
        if (policy := self._settings.retention) is not None:
            storage, worker_id, clock = self.host.storage, self.host.worker_id, self.host.clock
            work["retention"] = lambda task: sweep_for_ever(storage, policy, worker_id, task, clock)
        return work

    # Stopping.

    async def stop(self, grace_sec: float) -> None:
        """Drain and stop: lease no more runs, let running activities finish within the grace time, release all leases.

        See `RunExecutor.stop` for runs whose code does not end in time.
        """
        until = steady() + grace_sec
        self.executor.stopping = True
        self.work_loop.end()
        going = [id for id, each in self.executor.tasks.items() if not each.run.ending]  # the others just end
        self._log_runs(logging.INFO, "worker %s is draining: %d run(s) have up to %s to finish", going, grace_sec)
        self.executor.drain()
        self.slots.drain()
        relaying = None if self.relay is None else asyncio.create_task(self.relay.stop(grace_sec, self.hurried))
        await self._stop_leasing(min(LEASING_SEC, until - steady()))
        await self.executor.wait(until - steady(), self.hurried)
        left = self.executor.tasks
        self._log_runs(logging.WARNING, "worker %s hands over %d run(s) that did not finish within %s", left, grace_sec)
        await self.executor.stop()
        if relaying is not None:
            await relaying
        await self.executor.lost_leases.wait(ENDING_SEC)
        await self.heartbeat.stop()
        self.host.activities.close()
        log.info("worker %s stopped", self.host.worker_id, extra={"worker": self.host.worker_id})

    async def _stop_leasing(self, seconds: float) -> None:
        """End the background tasks, and those that create runs; the executor releases what they just leased."""
        await wait_unless(self.hurried, [self._tasks[WORK_LOOP], *self.starts.running], seconds)
        await end_tasks(self._tasks.values())

    def _log_runs(self, level: int, message: str, ids: Collection[str], grace_sec: float) -> None:
        """Log a message about these runs, if there are any."""
        if ids:
            extra = {"worker": self.host.worker_id, "runs": sorted(ids)[:100]}
            log.log(level, message, self.host.worker_id, len(ids), seconds(grace_sec), extra=extra)
