"""Share helpers between the conformance tests."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from perdure.model.records import ChannelMode, ChannelWait, Lease, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

Shift = Callable[[Storage, float], None]  # moves the clock of a storage so many seconds ahead of the real time


async def new(storage: Storage, instance_id: str, workflow_name: str = "wf", **fields: Any) -> None:
    """Create an instance."""
    await storage.create_instance(WorkflowInstance(instance_id, workflow_name, **fields))


async def leased(storage: Storage, instance_id: str, *, worker_id: str = "w1", timeout_sec: float = 30) -> Lease:
    """Create an instance with its first lease."""
    lease = await storage.create_instance(
        WorkflowInstance(instance_id, "wf"), worker_id=worker_id, timeout_sec=timeout_sec
    )
    assert lease is not None
    return lease


async def listening(
    storage: Storage,
    instance_id: str,
    channel: str = "c",
    mode: ChannelMode = ChannelMode.BROADCAST,
    *,
    activity_id: str = "r:1",
    after: timedelta | None = None,
) -> None:
    """Create an instance that waits for the next message of a channel."""
    lease = await leased(storage, instance_id)
    name = await storage.subscribe_to_channel(instance_id, channel, mode, lease=lease)
    assert (await storage.suspend(lease, [ChannelWait(name, activity_id, after=after)])).suspended


async def again(storage: Storage, instance_id: str, channel: str = "c", *, activity_id: str) -> bool:
    """Resume an instance and let it wait for the channel's next message; return False if there is one already."""
    lease = await storage.try_acquire_lock(instance_id, "w1", 30)
    assert lease is not None
    found = await storage.suspend(lease, [ChannelWait(channel, activity_id)])
    if not found.suspended:
        await storage.release_lock(instance_id, "w1", lease=lease)
    return found.suspended


async def status(storage: Storage, instance_id: str) -> WorkflowStatus:
    """Return the state of an instance."""
    found = await storage.get_instance(instance_id)
    assert found is not None
    return found.status


async def recorded(storage: Storage, instance_id: str) -> list[tuple[str, str]]:
    """Return an instance's history: activities and types of events."""
    events, _ = await storage.get_history_paginated(instance_id)
    return [(event.activity_id, event.event_type) for event in events]
