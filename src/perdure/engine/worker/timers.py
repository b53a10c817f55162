"""Due timers, timeouts of waits, and messages that are not delivered yet: work of any worker, for all runs."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from perdure.model.records import ResumableWorkflow
from perdure.storage.contract import Storage

BATCH = 100

Found = TypeVar("Found")


async def fire_timers(storage: Storage) -> int:
    """Fire the due timers, and return their number."""
    return await _in_batches(
        storage.find_expired_timers,
        lambda timers: storage.fire_timers([(timer.instance_id, timer.timer_id) for timer in timers]),
    )


async def expire_waits(storage: Storage) -> int:
    """End the waits for messages whose timeout is due, and return their number."""
    return await _in_batches(
        storage.find_expired_channel_subscriptions,
        lambda waits: storage.expire_channel_waits([(wait.instance_id, wait.channel) for wait in waits]),
    )


async def deliver(storage: Storage, channels: Sequence[str] | None = None) -> list[ResumableWorkflow]:
    """Deliver messages that wait for their runs, of all channels or of these; return the runs that were woken."""
    delivered = await storage.deliver_pending(BATCH, channels=channels)
    return [ResumableWorkflow(each.instance_id, each.workflow_name) for each in delivered]


async def _in_batches(
    find: Callable[[int], Awaitable[Sequence[Found]]], process: Callable[[Sequence[Found]], Awaitable[Sequence[bool]]]
) -> int:
    """Process what is due until nothing is left, or other workers process all that was found."""
    total = 0
    while found := await find(BATCH):
        done = sum(await process(found))
        total += done
        if len(found) < BATCH or not done:
            break
    return total
