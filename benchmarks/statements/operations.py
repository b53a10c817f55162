"""The operations that the life of a run consists of, alone or as a group commit of many runs.

What each needs is prepared first, and not counted. An operation that wakes a run leaves it to be claimed, which is an
operation of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any

from benchmarks.statements.counters import Counters, Counts
from perdure.model.names import direct
from perdure.model.records import ChannelMode, ChannelWait, HistoryEvent, Lease, TimerWait, WorkflowInstance
from perdure.storage.stores import SQLStorage

WORKER, LEASE_SEC = "bench", 900
EVENT, WORKFLOW = "go", "bench"
SLEEP = timedelta(milliseconds=1)
_numbers = count(1)


class Stage:
    """A storage with counters; `found` has the counts of the last counted block."""

    def __init__(self, storage: SQLStorage, counters: Counters, size: int) -> None:
        self.storage, self.size = storage, size
        self.found = Counts()
        self._counters = counters

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        before = await self._counters.read()
        yield
        after = await self._counters.read()
        self.found = Counts({name: after[name] - before[name] for name in self._counters.figures})

    def new(self) -> list[WorkflowInstance]:
        return [WorkflowInstance(f"run-{next(_numbers):06d}", WORKFLOW, b'{"number":1}') for _ in range(self.size)]

    async def leased(self) -> list[Lease]:
        created = await self.storage.create_instances(self.new(), worker_id=WORKER, timeout_sec=LEASE_SEC)
        return [lease for lease in created if isinstance(lease, Lease)]

    async def subscribed(self) -> list[Lease]:
        """Leases on runs that are subscribed to an event, for all and for each alone."""
        leases = await self.leased()
        for lease in leases:
            for channel in (EVENT, direct(EVENT, lease.instance_id)):
                await self.storage.subscribe_to_channel(lease.instance_id, channel, ChannelMode.BROADCAST, lease=lease)
        return leases

    async def waiting(self) -> list[Lease]:
        leases = await self.subscribed()
        await self.storage.suspend_instances([(lease, _waits(lease)) for lease in leases])
        return leases


def _waits(lease: Lease) -> list[ChannelWait]:
    return [ChannelWait(EVENT, "1:wait"), ChannelWait(direct(EVENT, lease.instance_id), "1:wait@")]


async def start(on: Stage) -> None:
    instances = on.new()
    async with on.counted():
        await on.storage.create_instances(instances, worker_id=WORKER, timeout_sec=LEASE_SEC)


async def step(on: Stage) -> None:
    leases = await on.leased()
    items = [(HistoryEvent(lease.instance_id, "1:add", "ActivityCompleted", b"2"), lease) for lease in leases]
    async with on.counted():
        await on.storage.append_histories(items)


async def end(on: Stage) -> None:
    leases = await on.leased()
    items = [(HistoryEvent(lease.instance_id, "1:add", "ActivityCompleted", b"2"), lease) for lease in leases]
    async with on.counted():
        await on.storage.append_and_complete(items, [(lease, b"2") for lease in leases])


async def wake_up(on: Stage) -> None:
    leases = await on.leased()
    await on.storage.suspend_instances([(lease, [TimerWait("1:sleep", "1:sleep", after=SLEEP)]) for lease in leases])
    while len(await on.storage.find_expired_timers(on.size)) < on.size:  # noqa: ASYNC110 - by the database's clock
        await asyncio.sleep(SLEEP.total_seconds())
    async with on.counted():
        due = await on.storage.find_expired_timers(on.size)
        assert all(await on.storage.fire_timers([(timer.instance_id, timer.timer_id) for timer in due]))


async def subscribe(on: Stage) -> None:
    leases = await on.leased()
    async with on.counted():
        for lease in leases:
            for channel in (EVENT, direct(EVENT, lease.instance_id)):
                await on.storage.subscribe_to_channel(lease.instance_id, channel, ChannelMode.BROADCAST, lease=lease)


async def suspend(on: Stage) -> None:
    leases = await on.subscribed()
    async with on.counted():
        found = await on.storage.suspend_instances([(lease, _waits(lease)) for lease in leases])
    assert all(getattr(each, "suspended", False) for each in found)


async def deliver(on: Stage) -> None:
    leases = await on.waiting()
    async with on.counted():
        for lease in leases:
            await on.storage.publish_to_channel(direct(EVENT, lease.instance_id), b"1")
        assert len(await on.storage.deliver_pending(on.size)) == on.size


async def claim(on: Stage) -> None:
    instances = on.new()
    await on.storage.create_instances(instances)
    async with on.counted():
        found = await on.storage.find_resumable_workflows(on.size, workflow_names=[WORKFLOW])
        ids = [each.instance_id for each in found]
        claimed = await on.storage.claim_instances(ids, WORKER, LEASE_SEC, limit=on.size)
    assert len(claimed) == on.size


OPERATIONS: dict[str, Callable[[Stage], Any]] = {
    "start": start,
    "step": step,
    "last step and end": end,
    "sleep: wake-up": wake_up,
    "event: subscribe": subscribe,
    "event: suspend": suspend,
    "event: send and deliver": deliver,
    "claim": claim,
}
