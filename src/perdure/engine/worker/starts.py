"""Starts of runs in the process of a worker: a new run is leased in the commit that creates it, if a slot is free."""

import asyncio
from collections.abc import Sequence

from perdure.engine.execution.group_commit import GroupCommit, Observer
from perdure.engine.execution.slots import Slot, Slots
from perdure.engine.worker.executor import RunExecutor
from perdure.engine.worker.metering import metered_write
from perdure.engine.worker.owners import owner_of
from perdure.engine.worker.run_task import LeasedRun
from perdure.engine.worker.settings import WorkerSettings
from perdure.errors import StorageError
from perdure.model.records import Lease, WorkflowInstance
from perdure.storage.contract import Storage

STARTS = "group commit of starts"


class LeasedStarts:
    """Creates runs and executes those that it leased, so that no worker has to look for them."""

    def __init__(
        self, storage: Storage, settings: WorkerSettings, slots: Slots, executor: RunExecutor, observer: Observer
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._slots = slots
        self._executor = executor
        self._leased: GroupCommit[tuple[WorkflowInstance, Slot], Lease | None] = GroupCommit(
            metered_write(self._create_leased, settings.meter, "starts"), observer
        )
        self._unleased: GroupCommit[WorkflowInstance, Lease | None] = GroupCommit(
            metered_write(storage.create_instances, settings.meter, "starts"), observer
        )

    async def create(self, instance: WorkflowInstance) -> None:
        """Store a new run, and execute it if this worker serves it and a slot is free."""
        slots = self._slots.reserve(1) if instance.workflow_name in self._settings.workflows else []
        if slots:
            await self._leased((instance, slots[0]))
        else:
            await self._unleased(instance)
            self._executor.host.wake()

    @property
    def running(self) -> "list[asyncio.Task[None]]":
        """Return the task that creates runs with their leases at the moment, or nothing."""
        return self._leased.running

    async def ended(self) -> None:
        """Wait until no run is being created."""
        await self._leased.ended()
        await self._unleased.ended()

    async def _create_leased(
        self, items: Sequence[tuple[WorkflowInstance, Slot]]
    ) -> "list[Lease | StorageError | None]":
        lease_sec = self._settings.lease_sec
        deadline = self._settings.clock.steady() + lease_sec
        unused = [slot for _, slot in items]
        try:
            answers = await self._storage.create_instances(
                [instance for instance, _ in items],
                worker_id=owner_of(self._settings.worker_id, 0),
                timeout_sec=lease_sec,
            )
            for (instance, _), lease in zip(items, answers, strict=True):
                if isinstance(lease, Lease):
                    self._executor.begin(LeasedRun(instance, lease, deadline, unused.pop(), is_new=True))
        finally:
            for slot in unused:
                slot.rest()
        return answers
