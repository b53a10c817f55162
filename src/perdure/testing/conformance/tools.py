"""Small things the conformance tests share."""

from datetime import timedelta
from typing import Any

from perdure.model.records import Lease, WorkflowInstance
from perdure.storage.stores import Rooms, shift_clock


async def new(storage: Rooms, instance_id: str, workflow_name: str = "wf", **fields: Any) -> None:
    """A new instance."""
    await storage.create_instance(WorkflowInstance(instance_id, workflow_name, **fields))


async def leased(storage: Rooms, instance_id: str, *, worker_id: str = "w1", timeout_sec: float = 30) -> Lease:
    """A new instance with its first lease."""
    lease = await storage.create_instance(
        WorkflowInstance(instance_id, "wf"), worker_id=worker_id, timeout_sec=timeout_sec
    )
    assert lease is not None
    return lease


def shift(storage: Rooms, seconds: float) -> None:
    """Move the storage's clock ahead of the database's real one."""
    shift_clock(storage, timedelta(seconds=seconds))
