"""Test how a backend handles leases."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perdure.errors import LeaseLostError, LimitError
from perdure.model.records import ChannelMode, ChannelWait, HistoryEvent, Lease, TimerWait, WorkflowInstance
from perdure.model.states import TERMINAL, WorkflowStatus
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, leased, new


async def test_lease_has_instance_worker_token_and_expiry(storage: Storage) -> None:
    await new(storage, "i-1")
    lease = await storage.try_acquire_lock("i-1", "w1", 30)
    assert lease is not None
    assert (lease.instance_id, lease.worker_id, lease.token) == ("i-1", "w1", 1)
    assert timedelta(seconds=20) < lease.expires_at - datetime.now(UTC) < timedelta(seconds=40)
    found = await storage.get_instance("i-1")
    assert found is not None
    assert (found.locked_by, found.lock_token, found.lock_expires_at) == ("w1", 1, lease.expires_at)


async def _sleep(storage: Storage, lease: Lease) -> None:
    await storage.suspend(lease, [TimerWait("t", "sleep:1", after=timedelta(seconds=60))])


async def _receive(storage: Storage, lease: Lease) -> None:
    channel = await storage.subscribe_to_channel(lease.instance_id, "c", ChannelMode.BROADCAST, lease=lease)
    await storage.suspend(lease, [ChannelWait(channel, "receive:1")])


async def _wait_for_either(storage: Storage, lease: Lease) -> None:
    channel = await storage.subscribe_to_channel(lease.instance_id, "c", ChannelMode.BROADCAST, lease=lease)
    timer = TimerWait("t", "sleep:1", after=timedelta(seconds=60))
    await storage.suspend(lease, [ChannelWait(channel, "receive:1"), timer])


async def _fail(storage: Storage, lease: Lease) -> None:
    await storage.update_instance_status(lease.instance_id, WorkflowStatus.FAILED, lease=lease)


LEASE_ENDS: dict[str, Callable[[Storage, Lease], Awaitable[object]]] = {
    "release": lambda storage, lease: storage.release_lock(lease.instance_id, lease.worker_id, lease=lease),
    "sleep": _sleep,
    "receive": _receive,
    "wait for either": _wait_for_either,
    "complete": lambda storage, lease: storage.complete_and_release(lease, b"1"),
    "complete a batch": lambda storage, lease: storage.complete_instances([(lease, b"1")]),
    "fail": _fail,
    "cancel": lambda storage, lease: storage.cancel_instance(lease.instance_id),
}


@pytest.mark.parametrize("way", LEASE_ENDS)
async def test_nothing_of_a_lease_is_left_when_it_ends(storage: Storage, way: str) -> None:
    lease = await leased(storage, "i-1")
    other = await leased(storage, "i-2")
    await LEASE_ENDS[way](storage, lease)
    ended, held = await storage.get_instances(["i-1", "i-2"])
    assert ended is not None
    assert (ended.locked_by, ended.locked_at, ended.lock_expires_at) == (None, None, None)
    assert ended.lock_token >= lease.token
    assert held is not None
    assert (held.locked_by, held.lock_expires_at) == ("w1", other.expires_at)


@pytest.mark.pitfall(2)
async def test_one_of_many_concurrent_acquirers_gets_the_lease(storage: Storage, peer: Storage) -> None:
    await new(storage, "i-1")
    answers = await asyncio.gather(
        *(side.try_acquire_lock("i-1", f"w{n}", 30) for n, side in enumerate([storage, peer] * 8))
    )
    assert sum(answer is not None for answer in answers) == 1


@pytest.mark.pitfall(15)
async def test_worker_cannot_acquire_a_lease_that_it_already_holds(storage: Storage) -> None:
    await leased(storage, "i-1", worker_id="w1")
    assert await storage.try_acquire_lock("i-1", "w1", 30) is None


@pytest.mark.pitfall(14)
@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_finished_instance_cannot_be_leased(storage: Storage, status: WorkflowStatus) -> None:
    await storage.create_instance(WorkflowInstance("i-1", "wf", status=status))
    assert await storage.try_acquire_lock("i-1", "w1", 30) is None
    assert await storage.try_acquire_lock("nobody", "w1", 30) is None


async def test_expired_lease_can_be_taken_over_with_a_higher_token(storage: Storage, shift: Shift) -> None:
    first = await leased(storage, "i-1", timeout_sec=10)
    shift(storage, 9)
    assert await storage.try_acquire_lock("i-1", "w2", 10) is None
    shift(storage, 11)
    second = await storage.try_acquire_lock("i-1", "w2", 10)
    assert second is not None
    assert second.token == first.token + 1
    await storage.release_lock("i-1", "w2")
    third = await storage.try_acquire_lock("i-1", "w3", 10)
    assert third is not None
    assert third.token == second.token + 1


async def test_expired_lease_stays_valid_until_it_is_taken_over(storage: Storage, shift: Shift) -> None:
    lease = await leased(storage, "i-1", timeout_sec=10)
    shift(storage, 60)
    await storage.append_history(HistoryEvent("i-1", "s", "ActivityCompleted", b"1"), lease=lease)
    renewed = await storage.refresh_lock("i-1", lease.worker_id, 10, lease=lease)
    assert renewed.token == lease.token
    assert renewed.expires_at > lease.expires_at
    assert await storage.try_acquire_lock("i-1", "w2", 10) is None


async def test_lease_duration_of_the_instance_takes_precedence(storage: Storage, shift: Shift) -> None:
    await storage.create_instance(WorkflowInstance("i-1", "wf", lock_timeout_seconds=100))
    lease = await storage.try_acquire_lock("i-1", "w1", 5)
    assert lease is not None
    shift(storage, 99)
    assert await storage.try_acquire_lock("i-1", "w2", 5) is None
    shift(storage, 101)
    assert await storage.try_acquire_lock("i-1", "w2", 5) is not None


async def test_many_leases_are_acquired_in_one_commit(storage: Storage, shift: Shift) -> None:
    for n in range(3):
        await new(storage, f"i-{n}")
    await storage.create_instance(WorkflowInstance("own", "wf", lock_timeout_seconds=100))
    await leased(storage, "held", worker_id="w1")
    expired = await leased(storage, "expired", timeout_sec=1)
    await storage.create_instance(WorkflowInstance("over", "wf", status=WorkflowStatus.COMPLETED))
    shift(storage, 2)
    ids = ["i-2", "held", "nobody", "i-0", "own", "over", "expired", "i-0"]
    leases = await storage.acquire_locks(ids, "w1", 5)
    assert [lease and lease.instance_id for lease in leases] == ["i-2", None, None, "i-0", "own", None, "expired", None]
    assert [lease and lease.token for lease in leases] == [1, None, None, 1, 1, None, expired.token + 1, None]
    for lease in leases:
        if lease is not None:
            found = await storage.get_instance(lease.instance_id)
            assert found is not None
            assert (found.locked_by, found.lock_token, found.lock_expires_at) == ("w1", lease.token, lease.expires_at)
            await storage.append_history(HistoryEvent(lease.instance_id, "s", "ActivityCompleted", b"1"), lease=lease)
    shift(storage, 8)
    again = await storage.acquire_locks(["i-0", "i-1", "own"], "w2", 5)
    assert [lease and lease.token for lease in again] == [2, 1, None]


async def test_concurrent_batches_acquire_each_lease_once(storage: Storage, peer: Storage) -> None:
    ids = [f"i-{n}" for n in range(20)]
    for instance_id in ids:
        await new(storage, instance_id)
    orders = [ids, ids[::-1]] * 4
    found = await asyncio.gather(
        *([storage, peer][n % 2].acquire_locks(order, f"w{n}", 30) for n, order in enumerate(orders))
    )
    taken = [lease.instance_id for leases in found for lease in leases if lease]
    assert len(taken) == len(set(taken))
    rest = await storage.acquire_locks(ids, "last", 30)  # a caller that found a row locked by another one skipped it
    assert sorted(taken + [lease.instance_id for lease in rest if lease]) == sorted(ids)


async def test_claimed_instances_are_returned_with_their_leases(storage: Storage, shift: Shift) -> None:
    await new(storage, "i-1")
    await storage.create_instance(WorkflowInstance("own", "wf", b'{"a":1}', lock_timeout_seconds=100))
    await leased(storage, "held", worker_id="w1")
    expired = await leased(storage, "expired", timeout_sec=1)
    await storage.create_instance(WorkflowInstance("over", "wf", status=WorkflowStatus.COMPLETED))
    shift(storage, 2)
    ids = ["own", "held", "nobody", "i-1", "over", "expired", "i-1"]
    claimed = await storage.claim_instances(ids, "w1", 5, limit=10)
    assert [lease.instance_id for lease, _ in claimed] == ["expired", "i-1", "own"]
    assert [lease.token for lease, _ in claimed] == [expired.token + 1, 1, 1]
    for lease, instance in claimed:
        assert await storage.get_instance(lease.instance_id) == instance
        assert (instance.locked_by, instance.lock_token) == ("w1", lease.token)
        assert instance.lock_expires_at == lease.expires_at
        await storage.append_history(HistoryEvent(lease.instance_id, "s", "ActivityCompleted", b"1"), lease=lease)
    shift(storage, 8)
    again = await storage.claim_instances(ids, "w2", 5, limit=10)
    assert [lease.instance_id for lease, _ in again] == ["expired", "i-1"]  # the third has a longer lease of its own


async def test_instances_that_wait_are_not_claimed(storage: Storage) -> None:
    """A notification may come late, when a run that it names waits again."""
    waits, undone = await leased(storage, "waits"), await leased(storage, "undone")
    await storage.suspend_instances([(waits, [TimerWait("t", "t", after=timedelta(seconds=60))])])
    await storage.cancel_instance("undone", "not needed", compensate=True)
    claimed = await storage.claim_instances(["waits", "undone"], "w2", 30, limit=5)
    assert [lease.instance_id for lease, _ in claimed] == ["undone"]
    assert claimed[0][0].token > undone.token
    assert await storage.try_acquire_lock("waits", "w3", 30) is not None  # which does not look at what it does


async def test_no_more_instances_are_claimed_than_asked_for(storage: Storage) -> None:
    ids = [f"i-{n}" for n in range(5)]
    for instance_id in ids:
        await new(storage, instance_id)
    assert len(await storage.claim_instances(ids, "w1", 30, limit=2)) == 2
    assert len(await storage.claim_instances(ids, "w2", 30, limit=5)) == 3
    assert await storage.claim_instances(ids, "w3", 30, limit=5) == []
    assert await storage.claim_instances([], "w3", 30, limit=5) == []


async def test_workers_that_claim_the_same_instances_share_them(storage: Storage, peer: Storage) -> None:
    """No claim is wasted: each worker gets as many instances as it asks for, as long as there are enough."""
    ids = [f"i-{n}" for n in range(40)]
    for instance_id in ids:
        await new(storage, instance_id)
    found = await asyncio.gather(
        *([storage, peer][n % 2].claim_instances(ids, f"w{n}", 30, limit=10) for n in range(4))
    )
    assert [len(claimed) for claimed in found] == [10, 10, 10, 10]
    assert sorted(lease.instance_id for claimed in found for lease, _ in claimed) == sorted(ids)


async def test_batch_of_leases_is_atomic(storage: Storage) -> None:
    await new(storage, "i-1")
    await new(storage, "i-2")
    with pytest.raises(ZeroDivisionError):
        async with storage.transaction():
            assert all(await storage.acquire_locks(["i-1", "i-2"], "w1", 30))
            _ = 1 / 0
    assert all(await storage.acquire_locks(["i-2", "i-1"], "w2", 30))


async def test_batch_of_leases_beyond_a_limit_is_refused(storage: Storage) -> None:
    assert await storage.acquire_locks([], "w1", 30) == []
    assert await storage.acquire_locks([f"i-{n}" for n in range(1000)], "w1", 30) == [None] * 1000
    with pytest.raises(LimitError):
        await storage.acquire_locks([f"i-{n}" for n in range(1001)], "w1", 30)
    for bad in (["i-1", " x"], ["a\x00"]):
        with pytest.raises(LimitError):
            await storage.acquire_locks(bad, "w1", 30)
    for worker_id, seconds in (("", 30), ("w1", 0)):
        with pytest.raises(LimitError):
            await storage.acquire_locks(["i-1"], worker_id, seconds)


@pytest.mark.pitfall(28)
async def test_leases_have_fractions_of_a_second(storage: Storage, shift: Shift) -> None:
    await leased(storage, "i-1", timeout_sec=0.5)
    shift(storage, 0.4)
    assert await storage.try_acquire_lock("i-1", "w2", 10) is None
    shift(storage, 0.6)
    assert await storage.try_acquire_lock("i-1", "w2", 10) is not None


@pytest.mark.pitfall(8)
async def test_writing_unchanged_values_does_not_lose_the_lease(storage: Storage) -> None:
    """A database that counts changed rows instead of matched ones would report no row."""
    lease = await leased(storage, "i-1", worker_id="w1", timeout_sec=30)
    for _ in range(3):
        assert (await storage.refresh_lock("i-1", "w1", 30, lease=lease)).token == lease.token
        await storage.update_instance_activity("i-1", "same", lease=lease)
        await storage.update_instance_status("i-1", WorkflowStatus.RUNNING, lease=lease)
    await storage.release_lock("i-1", "w1")
    assert await storage.try_acquire_lock("i-1", "w1", 30) is not None


async def test_only_the_holder_releases_a_lease(storage: Storage) -> None:
    lease = await leased(storage, "i-1", worker_id="w1")
    await storage.release_lock("i-1", "w2")
    await storage.release_lock("i-1", "w1", lease=Lease("i-1", "w1", lease.token - 1, lease.expires_at))
    await storage.release_lock("nobody", "w1")
    assert await storage.try_acquire_lock("i-1", "w2", 10) is None
    await storage.release_lock("i-1", "w1", lease=lease)
    with pytest.raises(LeaseLostError):
        await storage.append_history(HistoryEvent("i-1", "s", "ActivityCompleted", b"1"), lease=lease)
    assert await storage.try_acquire_lock("i-1", "w2", 10) is not None


async def test_a_lease_covers_its_own_instance_only(storage: Storage) -> None:
    lease = await leased(storage, "i-1", worker_id="w1")
    other = await leased(storage, "i-2", worker_id="w1")
    assert lease.token == other.token
    event = HistoryEvent("i-2", "s", "ActivityCompleted", b"1")
    for refused in (
        storage.append_history(event, lease=lease),
        storage.update_instance_activity("i-2", "a", lease=lease),
        storage.update_instance_output("i-2", b"1", lease=lease),
        storage.join_group("i-2", "g", lease=lease),
    ):
        with pytest.raises(LeaseLostError):
            await refused
    (answer,) = await storage.append_histories([(event, lease)])
    assert isinstance(answer, LeaseLostError)


@pytest.mark.pitfall(26)
async def test_renewing_a_lost_lease_raises(storage: Storage, peer: Storage, shift: Shift) -> None:
    lease = await leased(storage, "i-1", timeout_sec=10)
    shift(peer, 11)
    assert await peer.try_acquire_lock("i-1", "w2", 10) is not None
    with pytest.raises(LeaseLostError):
        await storage.refresh_lock("i-1", lease.worker_id, 10)
    with pytest.raises(LeaseLostError):
        await storage.refresh_lock("i-1", "w2", 10, lease=lease)


async def test_all_leases_of_a_worker_are_renewed_at_once(storage: Storage, shift: Shift) -> None:
    leases = [await leased(storage, f"i-{n}", worker_id="w1", timeout_sec=10) for n in range(4)]
    await storage.release_lock("i-1", "w1")
    await storage.complete_and_release(leases[2], b"1")
    shift(storage, 5)
    renewed = await storage.refresh_locks(leases, 10)
    assert [lease and lease.token for lease in renewed] == [1, None, None, 1]
    shift(storage, 14)
    assert await storage.try_acquire_lock("i-0", "w2", 10) is None
    assert await storage.refresh_locks([], 10) == []


async def test_leases_of_several_owners_are_renewed_at_once(storage: Storage, shift: Shift) -> None:
    """A worker holds some runs as their second owner, and its name shows that."""
    fresh = [await leased(storage, f"i-{n}", worker_id="w1#0", timeout_sec=10) for n in range(3)]
    taken = await leased(storage, "i-3", worker_id="w1#1", timeout_sec=10)
    stranger = await leased(storage, "i-4", worker_id="w2#0", timeout_sec=10)
    wrong = [replace(stranger, worker_id="w1#0"), replace(fresh[0], token=fresh[0].token - 1)]
    shift(storage, 5)
    renewed = await storage.refresh_locks([taken, fresh[2], *wrong, fresh[0], taken], 10)
    assert [lease and (lease.instance_id, lease.worker_id, lease.token) for lease in renewed] == [
        ("i-3", "w1#1", taken.token),
        ("i-2", "w1#0", fresh[2].token),
        None,
        None,
        ("i-0", "w1#0", fresh[0].token),
        ("i-3", "w1#1", taken.token),
    ]
    for lease in filter(None, renewed):
        found = await storage.get_instance(lease.instance_id)
        assert found is not None
        assert found.lock_expires_at == lease.expires_at
    shift(storage, 12)  # leases that were not renewed are free by now
    again = await storage.acquire_locks([f"i-{n}" for n in range(5)], "w3", 10)
    assert [lease is not None for lease in again] == [False, True, False, False, True]


async def test_renewal_keeps_the_lease_duration_of_the_instance(storage: Storage) -> None:
    await storage.create_instance(WorkflowInstance("own", "wf", lock_timeout_seconds=100))
    own = await storage.try_acquire_lock("own", "w1", 5)
    other = await leased(storage, "other", worker_id="w1", timeout_sec=5)
    assert own is not None
    renewed = await storage.refresh_locks([own, other], 50)
    assert [lease and round((lease.expires_at - datetime.now(UTC)) / timedelta(seconds=10)) for lease in renewed] == [
        10,
        5,
    ]


async def test_a_thousand_leases_are_renewed_at_once(storage: Storage, shift: Shift) -> None:
    ids = [f"i-{n}" for n in range(1000)]
    await storage.create_instances([WorkflowInstance(instance_id, "wf") for instance_id in ids])
    odd = await storage.acquire_locks(ids[1::2], "w1#1", 10)
    even = await storage.acquire_locks(ids[::2], "w1#0", 10)
    leases = [lease for lease in (*odd, *even) if lease]
    assert len(leases) == 1000
    shift(storage, 5)
    renewed = await storage.refresh_locks(leases, 10)
    assert [lease and lease.instance_id for lease in renewed] == [lease.instance_id for lease in leases]
    assert all(lease and lease.expires_at > was.expires_at for lease, was in zip(renewed, leases, strict=True))


async def test_concurrent_batches_of_one_worker_acquire_each_lease_once(storage: Storage, peer: Storage) -> None:
    """The same worker asks many times at once: each instance goes to one call only."""
    ids = [f"i-{n}" for n in range(10)]
    for instance_id in ids:
        await new(storage, instance_id)
    found = await asyncio.gather(*([storage, peer][n % 2].acquire_locks(ids, "w1", 30) for n in range(8)))
    taken = [lease.instance_id for leases in found for lease in leases if lease]
    assert len(taken) == len(set(taken))
    for instance_id in taken:
        instance = await storage.get_instance(instance_id)
        assert instance is not None
        assert (instance.locked_by, instance.lock_token) == ("w1", 1)


async def test_renewal_with_an_old_token_changes_nothing(storage: Storage, shift: Shift) -> None:
    old = await leased(storage, "i-1")
    shift(storage, 3600)
    new_lease = await storage.try_acquire_lock("i-1", old.worker_id, 30)
    assert new_lease is not None
    assert await storage.refresh_locks([old], 3000) == [None]
    found = await storage.get_instance("i-1")
    assert found is not None
    assert found.lock_expires_at == new_lease.expires_at


@pytest.mark.pitfall(27)
async def test_sweep_clears_and_reports_expired_leases(storage: Storage, shift: Shift) -> None:
    for n, status in enumerate(
        [WorkflowStatus.RUNNING, WorkflowStatus.COMPENSATING, WorkflowStatus.WAITING_FOR_MESSAGE]
    ):
        await storage.create_instance(WorkflowInstance(f"i-{n}", "wf", status=status))
        await storage.try_acquire_lock(f"i-{n}", "w1", 10)
    fresh = await leased(storage, "fresh", timeout_sec=1000)
    assert await storage.cleanup_stale_locks() == []
    shift(storage, 15)
    assert await storage.cleanup_stale_locks(60) == []
    freed = await storage.cleanup_stale_locks()
    assert sorted(info.instance_id for info in freed) == ["i-0", "i-1"]
    assert await storage.cleanup_stale_locks() == []
    waiting = await storage.get_instance("i-2")
    assert waiting is not None
    assert waiting.locked_by is None
    await storage.append_history(HistoryEvent("fresh", "s", "ActivityCompleted", b"1"), lease=fresh)


async def test_swept_lease_cannot_write(storage: Storage, shift: Shift) -> None:
    lease = await leased(storage, "i-1", timeout_sec=10)
    shift(storage, 15)
    await storage.cleanup_stale_locks()
    with pytest.raises(LeaseLostError):
        await storage.append_history(HistoryEvent("i-1", "s", "ActivityCompleted", b"1"), lease=lease)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "5", True])
async def test_invalid_lease_duration_is_refused(storage: Storage, seconds: float) -> None:
    await new(storage, "i-1")
    with pytest.raises(LimitError):
        await storage.try_acquire_lock("i-1", "w1", seconds)
