"""Metrics of a worker: wrappers around the parts that they measure. See `gauges.py` for the gauges.

A worker without a meter uses the parts themselves, so metrics that are off cost nothing.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import TypeVar

from perdure import metrics
from perdure.engine.execution.group_commit import Write
from perdure.engine.execution.interfaces import Attempt, Done, Record
from perdure.engine.worker.activities import Executor
from perdure.engine.worker.hooks import Hooks
from perdure.errors import StorageError
from perdure.hooks import (
    Hook,
    HookEvent,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunStarted,
    RunStuck,
    StepFailed,
    StepRetrying,
)
from perdure.metrics import Meter, Metric
from perdure.storage.contract import Storage

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def metered_write(write: "Write[Item, Answer]", meter: Meter | None, kind: str) -> "Write[Item, Answer]":
    """Return a function that writes a group commit and measures it; the function itself without a meter."""
    if meter is None:
        return write
    took, wrote = meter.bind(metrics.COMMIT_DURATION, kind), meter.bind(metrics.COMMIT_SIZE, kind)

    async def measured(items: Sequence[Item]) -> "Sequence[Answer | StorageError]":
        began = time.perf_counter()
        try:
            return await write(items)
        finally:
            took(time.perf_counter() - began)
            wrote(len(items))

    return measured


class MeteredActivities:
    """Measures the attempts that another executor executes."""

    def __init__(self, activities: Executor, meter: Meter) -> None:
        self._activities = activities
        self._execute = activities.execute
        self._took: dict[str, Callable[[float], object]] = {}  # by activity; every step looks here
        self._meter = meter

    async def execute(self, attempt: Attempt) -> Done:
        """Execute an attempt in this task and return its result or error."""
        done = await self._execute(attempt)
        if done.error is None:
            (self._took.get(attempt.activity.name) or self._bind(attempt.activity.name))(done.seconds)
        return done

    async def transact(self, attempt: Attempt, storage: Storage, record: Record) -> Done:
        """Execute an attempt in its own transaction, whose last statements record the result."""
        done = await self._activities.transact(attempt, storage, record)
        if done.error is None:
            self._bind(attempt.activity.name)(done.seconds)
        return done

    def _bind(self, activity: str) -> Callable[[float], object]:
        took = self._took[activity] = self._meter.bind(metrics.STEP_DURATION, activity)
        return took

    def close(self) -> None:
        """Let each thread end when its function returns."""
        self._activities.close()


_COUNTED = frozenset({RunStarted, RunCompleted})  # of the events that are made only if something observes them


class MeteredHooks(Hooks):
    """Counts the events of runs, and calls the hooks of the program as well."""

    def __init__(self, hooks: Sequence[Hook], meter: Meter) -> None:
        super().__init__(hooks)
        self._started = cache(self._begin)
        self._meter = meter
        self._finished = _series(meter, metrics.RUNS_FINISHED)
        self._lasted = _series(meter, metrics.RUN_DURATION)
        self._stuck = _series(meter, metrics.RUNS_STUCK)
        self._retried = _series(meter, metrics.RETRIES)
        self._failed = _series(meter, metrics.FAILURES)

    def observe(self, kind: type[HookEvent]) -> bool:
        """Return whether events of this kind are counted, or go to a hook or to the log."""
        return kind in _COUNTED or Hooks.observe(self, kind)

    def call(self, event: HookEvent, worker_id: str) -> None:
        """Count the event, log it and call every hook with it."""
        self._count(event)
        super().call(event, worker_id)

    def _count(self, event: HookEvent) -> None:
        match event:
            case RunStarted():
                self._started(event.workflow)(1)
            case RunCompleted():
                self._end(event.workflow, "completed", event.duration)
            case RunFailed():
                self._end(event.workflow, "failed", event.duration)
            case RunCancelled():
                self._end(event.workflow, "cancelled", event.duration)
            case RunStuck():
                self._stuck(event.workflow)(1)
            case StepRetrying():
                self._retried(event.activity)(1)
            case StepFailed():
                self._failed(event.activity)(1)

    def _begin(self, workflow: str) -> Callable[[float], object]:
        """Set all ends of a workflow to 0, so that a rate sees the first, and return what counts its starts."""
        for state in ("completed", "failed", "cancelled"):
            self._finished(workflow, state)
        return self._meter.bind(metrics.RUNS_STARTED, workflow)

    def _end(self, workflow: str, state: str, duration: timedelta) -> None:
        self._finished(workflow, state)(1)
        self._lasted(workflow, state)(duration.total_seconds())


class Claims:
    """Counts the leases that a worker asked for."""

    def __init__(self, meter: Meter) -> None:
        self._made, self._wasted = meter.bind(metrics.CLAIMS, "made"), meter.bind(metrics.CLAIMS, "wasted")

    def count(self, wanted: int, made: int) -> None:
        """Count the leases of one statement."""
        self._made(made)
        if wanted > made:
            self._wasted(wanted - made)


def lost_leases(meter: Meter | None) -> Callable[[], object]:
    """Return the function that counts a lost lease."""
    if meter is None:
        return lambda: None
    lost = meter.bind(metrics.LEASES_LOST)
    return lambda: lost(1)


def _series(meter: Meter, metric: Metric) -> Callable[..., Callable[[float], object]]:
    """Return the function that returns the function of a series by its labels; each is bound once."""
    return cache(lambda *labels: meter.bind(metric, *labels))
