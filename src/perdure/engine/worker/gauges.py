"""Gauges: a background task that sets them, some from the memory of a worker, some from the database."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from functools import cache

from perdure import metrics
from perdure.engine.execution.slots import Slots
from perdure.engine.worker.activities import Activities
from perdure.engine.worker.executor import RunExecutor
from perdure.engine.worker.stuck import oldest_due
from perdure.engine.worker.supervision import Supervised, Supervisor
from perdure.errors import StorageError
from perdure.metrics import Meter, Metric
from perdure.model.records import OutboxStatus
from perdure.storage.contract import Pooled, Storage

SAMPLE_SEC = 15.0
SAMPLED = 1000  # maximum number of rows that a gauge counts
EVENTS_SAMPLED = 100  # the same for events, which are read with their data


class Sampler:
    """Sets the gauges, a few times a minute: some from memory, some from the database."""

    def __init__(
        self,
        storage: Storage,
        meter: Meter,
        supervisor: Supervisor,
        *,
        executor: RunExecutor,
        slots: Slots,
        activities: Activities,
    ) -> None:
        self._storage = storage
        self._supervisor = supervisor
        self._executor = executor
        self._slots = slots
        self._activities = activities
        self._series = cache(meter.bind)

    async def run(self, task: Supervised) -> None:
        """Set the gauges again and again."""
        while True:
            self._sample_worker()
            try:
                await self._sample_database()
            except StorageError as error:
                task.unavailable(error)
            else:
                task.succeeded()
                self._gauge(metrics.SAMPLED_AT, time.time())  # old while the database does not answer
            await asyncio.sleep(SAMPLE_SEC)

    def _gauge(self, metric: Metric, value: float, *labels: str) -> None:
        self._series(metric, *labels)(value)

    def _sample_worker(self) -> None:
        self._gauge(metrics.EXECUTING, len(self._executor.tasks))
        self._gauge(metrics.SLOTS_USED, self._slots.taken)
        self._gauge(metrics.SLOTS, self._slots.most)
        self._gauge(metrics.CACHED, len(self._executor.cache.runs))
        self._gauge(metrics.ACTIVITIES, self._activities.executing)
        self._gauge(metrics.ACTIVITIES_MAX, self._activities.most)
        for each in self._supervisor.tasks():
            self._gauge(metrics.TASK_UP, 1 if each.alive else 0, each.name)
            self._gauge(metrics.TASK_FAILURES, each.failures, each.name)
        pool = self._storage.pool_use if isinstance(self._storage, Pooled) else None
        if pool is not None:
            used, most = pool
            self._gauge(metrics.POOL_USED, used)
            self._gauge(metrics.POOL_MAX, most)

    async def _sample_database(self) -> None:
        storage = self._storage
        due = await storage.find_resumable_workflows(SAMPLED)
        self._gauge(metrics.DUE_RUNS, len(due))
        oldest = await oldest_due(storage) if due else None
        self._gauge(metrics.DUE_LAG, 0.0 if oldest is None else oldest.total_seconds(), "runs")
        self._gauge(metrics.STUCK_RUNS, len(await storage.list_stuck(SAMPLED)))
        now = await storage.now()
        timers = await storage.find_expired_timers(1)
        self._gauge(metrics.DUE_LAG, _lag(now, [each.expires_at for each in timers]), "timers")
        pending = await storage.list_outbox_events(OutboxStatus.PENDING, EVENTS_SAMPLED)
        self._gauge(metrics.OUTBOX_PENDING, len(pending))
        self._gauge(metrics.DUE_LAG, _lag(now, [each.created_at for each in pending[:1]]), "outbox")


def _lag(now: datetime, dues: Sequence[datetime | None]) -> float:
    """Return for how many seconds the oldest of these has been due."""
    return max((max((now - due).total_seconds(), 0.0) for due in dues if due is not None), default=0.0)
