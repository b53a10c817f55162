"""Batches skip rows that another transaction has locked and process the others at once, or wait for all."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from perdure.errors import InstanceExistsError, LeaseLostError, StorageError
from perdure.model.records import (
    ChannelMode,
    ChannelWait,
    HistoryEvent,
    Lease,
    TimerSubscription,
    TimerWait,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.sets import SET_MAX_BYTES
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import leased, new, recorded
from tests.support.blocking import at_once, blocked
from tests.support.storages import shift

SOON = timedelta(seconds=5)
IDS = ["i-0", "i-1", "i-2"]


async def locked(storage: SQLStorage) -> bool:
    """Lock the row of the second one in the open transaction; False where that would lock out all writers."""
    if storage._backend.driver.name == "sqlite":
        return False
    await storage.conn().fetch("SELECT status FROM workflow_instances WHERE instance_id = 'i-1' FOR UPDATE")
    return True


async def test_acquiring_many_leases_skips_locked_rows(storage: SQLStorage, peer: SQLStorage) -> None:
    for instance_id in IDS:
        await new(storage, instance_id)
    async with peer.transaction():
        if not await locked(peer):
            return
        leases = await at_once(storage.acquire_locks(IDS, "w1", 30))
        assert [lease and lease.token for lease in leases] == [1, None, 1]
    assert [lease and lease.token for lease in await storage.acquire_locks(IDS, "w1", 30)] == [None, 1, None]


async def test_claim_takes_another_instance_instead_of_one_that_is_locked(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    for instance_id in IDS:
        await new(storage, instance_id)
    async with peer.transaction():
        if not await locked(peer):
            return
        claimed = await at_once(storage.claim_instances(IDS, "w1", 30, limit=2))
        assert [lease.instance_id for lease, _ in claimed] == ["i-0", "i-2"]
    assert [lease.instance_id for lease, _ in await storage.claim_instances(IDS, "w1", 30, limit=2)] == ["i-1"]


async def test_lease_with_an_uncommitted_renewal_is_not_taken_over(storage: SQLStorage, peer: SQLStorage) -> None:
    """The lease has run out, and its owner has renewed it and not committed yet."""
    for instance_id in IDS:
        await leased(storage, instance_id, timeout_sec=10)
    shift(storage, 20)
    shift(peer, 20)
    async with peer.transaction():
        if not await locked(peer):
            return
        await peer.refresh_lock("i-1", "w1", 60)
        taken = await at_once(storage.acquire_locks(IDS, "w2", 30))
        assert [lease and lease.token for lease in taken] == [2, None, 2]
    assert await storage.acquire_locks(IDS, "w3", 30) == [None] * 3


Batch = Callable[[SQLStorage], Awaitable[list[bool]]]


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(lambda on: on.fire_timers([(instance_id, "t") for instance_id in IDS]), id="timers"),
        pytest.param(lambda on: on.expire_channel_waits([(instance_id, "c") for instance_id in IDS]), id="waits"),
    ],
)
async def test_resuming_many_instances_skips_locked_rows(storage: SQLStorage, peer: SQLStorage, batch: Batch) -> None:
    for instance_id in IDS:
        lease = await leased(storage, instance_id)
        await storage.subscribe_to_channel(instance_id, "c", ChannelMode.BROADCAST, lease=lease)
        waits: list[TimerWait | ChannelWait] = [TimerWait("t", "t:1", after=SOON), ChannelWait("c", "c:1", after=SOON)]
        assert (await storage.suspend(lease, waits)).suspended
    shift(storage, 6)
    async with peer.transaction():
        if not await locked(peer):
            return
        assert await at_once(batch(storage)) == [True, False, True]
    assert await batch(storage) == [False, True, False]
    assert [len(await recorded(storage, instance_id)) for instance_id in IDS] == [1, 1, 1]
    found = await storage.get_instances(IDS)
    assert [it and it.status for it in found] == [WorkflowStatus.RUNNING] * 3


async def test_batch_of_several_statements_is_visible_as_a_whole(storage: SQLStorage, peer: SQLStorage) -> None:
    leases = [await leased(storage, instance_id) for instance_id in IDS]
    large = b'"' + b"x" * SET_MAX_BYTES + b'"'  # the next events are in another statement
    events = [HistoryEvent(instance_id, "s", "ActivityCompleted", large) for instance_id in IDS]
    async with peer.transaction():
        if not await locked(peer):
            return
        batch = asyncio.create_task(storage.append_histories(list(zip(events, leases, strict=True))))
        await blocked(peer, batch)
        with peer.detached():
            assert await peer.get_history_count("i-0") == 0
    await batch
    assert [await peer.get_history_count(instance_id) for instance_id in IDS] == [1, 1, 1]


@pytest.mark.parametrize("with_events", [False, True])
@pytest.mark.parametrize("taken_over", [False, True])
async def test_completing_many_instances_waits_for_a_locked_row(
    storage: SQLStorage, peer: SQLStorage, taken_over: bool, with_events: bool
) -> None:
    leases = [await leased(storage, instance_id) for instance_id in IDS]
    async with peer.transaction():
        if not await locked(peer):
            return
        batch = asyncio.create_task(_complete(storage, leases, with_events=with_events))
        await blocked(peer, batch)
        if taken_over:
            await peer.release_lock("i-1", "w1")
            assert await peer.try_acquire_lock("i-1", "w2", 30)
        else:  # the batch began before this timer existed
            await peer.register_timer_subscription(TimerSubscription("i-1", "t"), after=SOON)
    assert [type(answer) for answer in await batch] == [
        type(None),
        LeaseLostError if taken_over else type(None),
        type(None),
    ]
    assert await storage.get_waits(IDS) == []
    found = await storage.get_instances(IDS)
    kept = WorkflowStatus.RUNNING if taken_over else WorkflowStatus.COMPLETED
    assert [it and it.status for it in found] == [WorkflowStatus.COMPLETED, kept, WorkflowStatus.COMPLETED]
    stored = [1, 0 if taken_over else 1, 1] if with_events else [0, 0, 0]
    assert [await storage.get_history_count(instance_id) for instance_id in IDS] == stored


async def _complete(storage: SQLStorage, leases: list[Lease], *, with_events: bool) -> list[StorageError | None]:
    completions = [(lease, b"1") for lease in leases]
    if not with_events:
        return await storage.complete_instances(completions)
    events = [(HistoryEvent(lease.instance_id, "s", "ActivityCompleted", b"1"), lease) for lease in leases]
    answers = await storage.append_and_complete(events, completions)
    return [answer for answer in answers[len(events) :] if not isinstance(answer, int)]


async def test_creating_many_instances_waits_for_an_uncommitted_one(storage: SQLStorage, peer: SQLStorage) -> None:
    await new(storage, "i-1")
    made = [WorkflowInstance(instance_id, "wf") for instance_id in ("i-2", "new", "i-0")]
    async with peer.transaction():
        if not await locked(peer):
            return
        await new(peer, "new")
        batch = asyncio.create_task(storage.create_instances(made, worker_id="w"))
        await blocked(peer, batch)
    assert [type(answer) for answer in await batch] == [Lease, InstanceExistsError, Lease]


async def test_batches_that_create_the_same_instances_share_them(storage: SQLStorage, peer: SQLStorage) -> None:
    made = [WorkflowInstance(f"i-{n}", f"wf-{n % 3}") for n in range(50)]
    for number in range(4):
        named = [replace(it, instance_id=f"{number}-{it.instance_id}") for it in made]
        both = await asyncio.gather(
            storage.create_instances(named, worker_id="w1"), peer.create_instances(named[::-1], worker_id="w2")
        )
        created = [[isinstance(answer, Lease) for answer in answers] for answers in (both[0], both[1][::-1])]
        assert [sum(pair) for pair in zip(*created, strict=True)] == [1] * len(made)
