"""Stuck runs: runs in back-off after tries without progress, and runs whose workflow no live worker executes.

The storage has the reason of each back-off. Each worker publishes the names of the workflows that it executes.
"""

import asyncio
import json
import logging
import re
from collections.abc import Collection
from datetime import datetime, timedelta

from perdure.engine.history.codec import encode
from perdure.errors import NonDeterminismError, StorageError
from perdure.model.limits import METADATA_MAX
from perdure.model.records import WorkerInfo, WorkflowInstance
from perdure.model.states import RESUMABLE, TERMINAL
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

UNSERVED = timedelta(seconds=10)  # a run that is due for longer counts as not served by any worker
WARN_SEC = 5.0  # delay of the warning to a caller that waits for a run that no worker serves
SAMPLE = 100  # number of due runs that are read to find the oldest
REASON_MAX = 4000
BEATS = 2.0  # a worker that has missed this many heartbeats is not live
BEAT_GRACE = timedelta(seconds=5)
LONGEST_BEAT = timedelta(days=1)
_SPACE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


def reason_of(error: BaseException, *, arguments: bool = True) -> str:
    """Return the reason why a run is stuck: the error in one line.

    Without `arguments`, as for a log, the arguments that a `NonDeterminismError` shows are left out.
    """
    shown = error.summary if isinstance(error, NonDeterminismError) and not arguments else str(error)
    message = _SPACE.sub(" ", shown).strip()
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= REASON_MAX else f"{text[: REASON_MAX - 1].rstrip()}…"


def unclaimed_for(row: WorkflowInstance, now: datetime) -> timedelta:
    """Return for how long a run has been due without being leased; zero if it is not due."""
    since = row.updated_at if row.locked_by is None else row.lock_expires_at
    if row.status not in RESUMABLE or since is None:
        return timedelta(0)
    return max(now - since, timedelta(0))


async def oldest_due(storage: Storage) -> timedelta | None:
    """Return for how long the oldest due run has been waiting for a worker; None if no run is due."""
    found = await storage.find_resumable_workflows(SAMPLE)
    if not found:
        return None
    now = await storage.now()
    rows = await storage.get_instances([each.instance_id for each in found])
    return max((unclaimed_for(row, now) for row in rows if row is not None), default=None)


# The workflows of live workers.


def published(workflows: Collection[str], lease_sec: float) -> bytes:
    """Return what a worker publishes. If the names are too long they are left out, which means that it serves all."""
    info = encode({"workflows": sorted(workflows), "lease_sec": lease_sec})
    return info if len(info) <= METADATA_MAX else encode({"lease_sec": lease_sec})


async def served_names(storage: Storage) -> Collection[str] | None:
    """Return the names of the workflows that live workers serve; None if one of them may serve all."""
    now = await storage.now()
    names: set[str] = set()
    for worker in await storage.list_workers(alive_within=LONGEST_BEAT):
        if not is_live(worker, now):
            continue
        known = about_worker(worker).get("workflows")
        if not isinstance(known, list):
            return None
        names.update(known)
    return names


class UnservedWarning:
    """Logs a warning, once after a few seconds, if a caller waits for a run whose workflow no live worker serves."""

    def __init__(self, storage: Storage, instance_id: str) -> None:
        self._storage, self._id = storage, instance_id
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WARN_SEC, self._begin)

    def stop(self) -> None:
        """Cancel the warning, because the caller no longer waits."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._warn())

    async def _warn(self) -> None:
        try:
            row, served = await self._storage.get_instance(self._id), await served_names(self._storage)
        except StorageError as error:  # the caller's own wait reports an unavailable database
            log.debug(
                "could not check whether a live worker serves run %s: %s: %s",
                self._id,
                type(error).__name__,
                error,
                extra={"run_id": self._id, "reason": str(error)},
            )
            return
        if row is None or row.status in TERMINAL or served is None or row.workflow_name in served:
            return
        log.warning(
            "run %s (%s) has not ended after %g s, and no live worker serves its workflow: start an App that "
            "serves it, or check whether the workflow was renamed",
            self._id,
            row.workflow_name,
            WARN_SEC,
            extra={"run_id": self._id, "workflow": row.workflow_name},
        )


def is_live(worker: WorkerInfo, now: datetime) -> bool:
    """Return whether a worker has sent a heartbeat recently."""
    return now - worker.beat_at <= _patience(about_worker(worker))


def about_worker(worker: WorkerInfo) -> dict[str, object]:
    """Return what a worker published about itself; see `published`."""
    try:
        found = json.loads(worker.info or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _patience(about: dict[str, object]) -> timedelta:
    seconds = about.get("lease_sec")
    return BEAT_GRACE + timedelta(seconds=BEATS * seconds if isinstance(seconds, int | float) else 60.0)
