"""Back-off: a run whose try ended without progress is leased by no worker for a time, longer after each try."""

import logging
import random
from datetime import timedelta

from perdure.engine.execution.interfaces import Executable
from perdure.engine.worker.host import WorkerHost
from perdure.engine.worker.log import about
from perdure.engine.worker.stuck import reason_of
from perdure.errors import EngineError, StorageError, WorkerDiedError
from perdure.hooks import RunStuck
from perdure.model.records import Lease

log = logging.getLogger("perdure.engine")

BACK_OFF_MAX_SEC = 300.0
DEATHS_MAX = 3  # deaths of workers in a row, without progress of the run, before it is backed off
DEATHS_PATIENCE = 6  # deaths before the back-off grows: another run of the same workers may be the cause


def died_too_often(run: Executable, tries: int) -> WorkerDiedError | None:
    """Return the error of a run whose worker just died, if that was the last of too many deaths."""
    if tries < min(DEATHS_MAX, run.workflow.max_tries or DEATHS_MAX):
        return None
    return WorkerDiedError(
        f"{tries} workers in a row died or lost their database while they executed this run, and it made no progress: "
        "does its code end the process, or use too much memory?"
    )


async def back_off(host: WorkerHost, run: Executable, lease: Lease, error: BaseException, tries: int) -> None:
    """Release a run so that no worker leases it for a time that doubles with each try, and report it as stuck."""
    pause = pause_sec(error, tries)
    run.ending = True  # the heartbeat may find the lease gone before this returns
    try:
        await host.storage.back_off(lease, tries, reason_of(error), pause)
    except StorageError as refused:
        log.debug("run %s (%s) is retried when its lease expires: %s", *about(run).values(), refused)
    reason = reason_of(error, arguments=False)
    host.happened(RunStuck(run.id, run.workflow.name, host.now(), reason, tries, timedelta(seconds=pause)))
    if not isinstance(error, EngineError):  # unexpected, so log the traceback
        log.debug("run %s (%s) is stuck because of this error", *about(run).values(), exc_info=error)


def pause_sec(error: BaseException, tries: int) -> float:
    """Return for how long a run is backed off after so many tries without progress, the last with this error."""
    patience = DEATHS_PATIENCE if isinstance(error, WorkerDiedError) else 1
    pause = min(BACK_OFF_MAX_SEC, 2.0 ** min(max(0, tries - patience), 10))
    if isinstance(error, WorkerDiedError):
        pause *= random.uniform(0.75, 1.25)  # nosec B311 # so that runs of one dead worker are retried apart
    return pause
