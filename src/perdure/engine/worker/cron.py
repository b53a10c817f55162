"""Cron ticks: starts of scheduled workflows. Workers that start the same tick start the same run."""

import logging
from datetime import datetime

from perdure.engine.replay.definitions import WorkflowDefinition
from perdure.engine.starting import start_tick
from perdure.engine.worker.host import WorkerHost
from perdure.engine.worker.retention import Retention
from perdure.engine.worker.settings import WorkerSettings
from perdure.errors import StorageError
from perdure.model.schedules import Schedule, tick_id

log = logging.getLogger("perdure.engine")

TICK_AGAIN_SEC = 60.0  # retry interval after a scheduled workflow could not be started


class Cron:
    """Starts the due ticks of a worker's scheduled workflows."""

    def __init__(self, host: WorkerHost, settings: WorkerSettings) -> None:
        self._host = host
        self._settings = settings
        self._ticked = host.now()
        self._ticks: dict[str, datetime] = {}  # the last tick of each scheduled workflow
        self._again_at: dict[str, float] = {}  # when to retry a tick that could not be started

    def next_ticks(self) -> list[datetime]:
        """Return when the next tick of each scheduled workflow is due, without those that are retried later."""
        dues = (self._next_tick(each) for each in self._settings.workflows.values() if each.schedule is not None)
        return [due for due in dues if due is not None]

    def _next_tick(self, workflow: WorkflowDefinition) -> datetime | None:
        if workflow.schedule is None or workflow.name in self._again_at:
            return None
        try:
            return workflow.schedule.next_after(self._ticked)
        except Exception as error:
            self._failed(workflow, error)
            return None

    async def start_ticks(self) -> int:
        """Start the due ticks and return their number.

        A tick that cannot be started is logged and does not stop the ticks of other workflows.
        """
        started, self._ticked = 0, self._host.now()
        for workflow in list(self._settings.workflows.values()):
            if workflow.schedule is None or self._host.clock.steady() < self._again_at.get(workflow.name, 0.0):
                continue
            try:
                started += await self._start_tick(workflow, workflow.schedule)
                self._again_at.pop(workflow.name, None)
            except StorageError:
                raise
            except Exception as error:
                self._failed(workflow, error)
        return started

    async def _start_tick(self, workflow: WorkflowDefinition, schedule: Schedule) -> int:
        tick = schedule.last_before(self._ticked)
        if self._ticks.get(workflow.name) == tick or self._may_be_deleted(tick):
            return 0
        await start_tick(self._host.storage, workflow, tick_id(workflow.name, tick), self._settings.interception)
        self._ticks[workflow.name] = tick
        return 1

    def _may_be_deleted(self, tick: datetime) -> bool:
        """Return whether retention may have deleted the run of a tick, which must not be started a second time."""
        retention = self._settings.retention
        kept = Retention.span(retention.finished) if retention else None
        return kept is not None and self._host.now() - tick >= kept

    def _failed(self, workflow: WorkflowDefinition, error: Exception) -> None:
        log.error(
            "the scheduled workflow %s could not be started, retrying in %g s: %s: %s",
            workflow.name,
            TICK_AGAIN_SEC,
            type(error).__name__,
            error,
            extra={
                "workflow": workflow.name,
                "worker": self._host.worker_id,
                "retry_in_sec": TICK_AGAIN_SEC,
                "error_type": type(error).__name__,
                "error_message": str(error),
            },
            exc_info=error,
        )
        self._again_at[workflow.name] = self._host.clock.steady() + TICK_AGAIN_SEC
