"""Claiming: which due runs a worker leases, and what it knows of their earlier tries.

Runs are leased in batches, one for each number of tries without progress, because the owner of a lease contains it. If
the worker that held a lease before died without progress of the run, that counts as a try, too.

Workers that look at the same time find the same runs. So a worker asks for more runs than it has slots for, and the
storage leases to it those that no other worker is just leasing.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence

from perdure.engine.execution.slots import Slot, Slots
from perdure.engine.worker.executor import RunExecutor
from perdure.engine.worker.metering import Claims
from perdure.engine.worker.owners import is_dead, owner_of, tries_of, worker_of
from perdure.engine.worker.run_task import LeasedRun
from perdure.engine.worker.settings import WorkerSettings
from perdure.model.records import ResumableWorkflow, WorkflowInstance
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

BATCH = 100
SPREAD = 4  # runs to choose from, for each slot
CLAIM_SEC = 0.2  # how long one search continues to lease runs as slots become free
SLOT_SEC = 0.02  # how long it waits for the next slot
NAMES_SHOWN = 5  # maximum number of runs named in one log message


class Claiming:
    """Leases due runs as far as slots are free, and passes them to the executor."""

    def __init__(self, storage: Storage, settings: WorkerSettings, slots: Slots, executor: RunExecutor) -> None:
        self._storage = storage
        self._settings = settings
        self._slots = slots
        self._executor = executor
        self._claims = None if settings.meter is None else Claims(settings.meter)

    async def claim(self) -> int:
        """Lease due runs and return their number."""
        claimed, until = 0, time.monotonic() + CLAIM_SEC
        while self._settings.workflows and not self._executor.stopping:
            slots = self._slots.reserve(BATCH)
            if not slots:
                granted = self._slots.queue_search()
                if not claimed or time.monotonic() >= until or not await _comes(granted, SLOT_SEC):
                    break
                continue
            try:
                # Runs that cannot be leased yet must not hide the others.
                limit = SPREAD * len(slots) + min(len(self._executor.awaited), BATCH)
                found = await self._storage.find_resumable_workflows(
                    limit, workflow_names=list(self._settings.workflows)
                )
                taken = await self._take(found, slots)
            finally:
                for slot in slots:
                    slot.rest()  # the slots that are left
            claimed += taken
            if not taken or len(found) < limit:
                break
        return claimed

    async def claim_woken(self, found: Sequence[ResumableWorkflow]) -> int:
        """Lease runs that may be due, without a search for them, and return their number.

        Runs that are executed here are left to a search, which shows whether they are due.
        """
        workflows, executed = self._settings.workflows, self._executor.tasks
        served = [each for each in found if each.workflow_name in workflows and each.instance_id not in executed]
        if not served or self._executor.stopping:
            return 0
        slots = self._slots.reserve(len(served))
        try:
            return await self._take(served, slots)
        finally:
            for slot in slots:
                slot.rest()

    async def _take(self, found: Sequence[ResumableWorkflow], slots: list[Slot]) -> int:
        """Lease the runs that were found and are not executed here; each takes one of the slots."""
        free: list[ResumableWorkflow] = []
        for each in found:
            if each.instance_id in self._executor.tasks:
                self._executor.found_due(each.instance_id)
            else:
                free.append(each)
        dead = [each for each in free if is_dead(each.worker_id)][: len(slots)]
        idle = await self._without_progress(dead)
        by_tries: dict[int, list[ResumableWorkflow]] = {}
        for each in [*dead, *(each for each in free if not is_dead(each.worker_id))]:
            by_tries.setdefault(_tries(each, idle), []).append(each)
        taken: list[ResumableWorkflow] = []
        for tries, batch in by_tries.items():
            taken += await self._lease(batch, tries, idle, slots)
        self._log_takeover(taken)
        return len(taken)

    async def _lease(
        self, batch: Sequence[ResumableWorkflow], tries: int, idle: Collection[str], slots: list[Slot]
    ) -> list[ResumableWorkflow]:
        """Lease runs with the same number of tries, as far as slots are free, and execute them; return these runs."""
        if not slots:
            return []
        wanted = {each.instance_id: each for each in batch}
        lease_sec = self._settings.lease_sec
        deadline = self._settings.clock.steady() + lease_sec
        claimed = await self._storage.claim_instances(
            list(wanted), owner_of(self._settings.worker_id, tries), lease_sec, limit=len(slots)
        )
        if self._claims is not None:
            self._claims.count(min(len(wanted), len(slots)), len(claimed))
        for lease, row in claimed:
            leased = LeasedRun(row, lease, deadline, slots.pop(), tries, row.instance_id in idle)
            self._executor.begin(leased)
        return [wanted[lease.instance_id] for lease, _ in claimed]

    async def _without_progress(self, died: Sequence[ResumableWorkflow]) -> set[str]:
        """Return the runs, of those whose worker died, for which nothing was recorded under the expired lease."""
        if not died:
            return set()
        rows = await self._storage.get_instances([each.instance_id for each in died])
        pairs = zip(died, rows, strict=True)
        return {each.instance_id for each, row in pairs if row is not None and not _progressed(each, row)}

    def _log_takeover(self, taken: Sequence[ResumableWorkflow]) -> None:
        worker_id = self._settings.worker_id
        for worker, runs in _runs_of_dead(taken).items():
            if worker == worker_id:
                continue  # this worker lost the leases itself and has logged it
            log.warning(
                "worker %s takes over %d run(s) of worker %s, whose lease expired: %s%s",
                worker_id,
                len(runs),
                worker,
                ", ".join(runs[:NAMES_SHOWN]),
                " …" if len(runs) > NAMES_SHOWN else "",
                extra={"worker": worker_id, "from_worker": worker, "runs": list(runs)},
            )


def _runs_of_dead(taken: Sequence[ResumableWorkflow]) -> Mapping[str, list[str]]:
    """Return the ids of the runs whose worker died, by worker."""
    found: dict[str, list[str]] = {}
    for each in taken:
        if each.worker_id is not None and is_dead(each.worker_id):
            found.setdefault(worker_of(each.worker_id), []).append(each.instance_id)
    return found


def _tries(found: ResumableWorkflow, idle: Collection[str]) -> int:
    """Return the number of tries in a row without progress, including the one during which the owner died."""
    if not is_dead(found.worker_id):
        return tries_of(found.worker_id)
    return tries_of(found.worker_id) + 1 if found.instance_id in idle else 0


def _progressed(found: ResumableWorkflow, row: WorkflowInstance) -> bool:
    """Return whether anything was recorded under the expired lease."""
    stamps = found.locked_at, row.updated_at
    return stamps[0] is not None and stamps[1] is not None and stamps[1] > stamps[0]


async def _comes(future: "asyncio.Future[None]", seconds: float) -> bool:
    """Return whether a future is done in time; if not, it is not cancelled."""
    done, _ = await asyncio.wait([future], timeout=seconds)
    return bool(done)
