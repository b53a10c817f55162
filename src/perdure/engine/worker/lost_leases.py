"""Log messages about lost leases."""

import asyncio
import logging
from collections.abc import Callable

from perdure.engine.execution.interfaces import Executable
from perdure.engine.worker.log import about
from perdure.errors import StorageError
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")


class LostLeases:
    """Logs the lost leases of one worker, not as a warning if the run was cancelled."""

    def __init__(self, storage: Storage, worker_id: str, count: Callable[[], object] = lambda: None) -> None:
        self._storage = storage
        self._count = count  # called for each lease that was lost without a cancellation
        self._worker_id = worker_id
        self._tasks: set[asyncio.Task[None]] = set()

    def report_soon(self, run: Executable) -> None:
        """Log a lost lease in a task of its own, because the run's task may take long to end."""
        task = asyncio.create_task(self.report(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def report(self, run: Executable) -> None:
        """Log a lost lease."""
        row = None
        try:
            row = await self._storage.get_instance(run.id)
        except StorageError as error:  # the warning below is logged all the same
            log.debug(
                "could not read whether run %s (%s) was cancelled: %s: %s",
                *about(run).values(),
                type(error).__name__,
                error,
                extra={**about(run), "reason": str(error)},
            )
        was_cancelled = row is not None and row.status in (WorkflowStatus.COMPENSATING, WorkflowStatus.CANCELLED)
        if not was_cancelled:
            self._count()
        log.log(
            logging.DEBUG if was_cancelled else logging.WARNING,
            "worker %s lost its lease on run %s (%s) and stops executing it: %s",
            self._worker_id,
            run.id,
            run.workflow.name,
            "the run was cancelled" if was_cancelled else "the lease expired, or another worker took the run over",
            extra={**about(run), "worker": self._worker_id},
        )

    async def wait(self, seconds: float) -> None:
        """Wait for the messages that are not logged yet."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
