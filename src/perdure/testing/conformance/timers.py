"""Test how a backend handles waits for a time."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from perdure.errors import InstanceNotFoundError, InvalidTransitionError, LeaseLostError, LimitError
from perdure.model.records import HistoryEvent, Lease, ResumableWorkflow, TimerSubscription, TimerWait
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, leased, new, recorded, status

AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SOON = timedelta(seconds=10)


async def sleeping(storage: Storage, instance_id: str, after: timedelta = SOON, timer_id: str = "t") -> Lease:
    """Create an instance that waits for a timer, and return the lease it released."""
    lease = await leased(storage, instance_id)
    assert (await storage.suspend(lease, [TimerWait(timer_id, f"{timer_id}:1", after=after)])).suspended
    return lease


async def test_registering_a_timer_again_keeps_its_first_time(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    for at in (AT, AT + SOON):
        await storage.register_timer_subscription(TimerSubscription("i-1", "t", at, "t:1"), lease=lease)
    await storage.register_timer_subscription(TimerSubscription("i-1", "t"), after=timedelta(0))
    await storage.update_instance_status("i-1", WorkflowStatus.WAITING_FOR_TIMER)
    assert await storage.next_due_at() == AT
    assert await storage.find_expired_timers() == []


@pytest.mark.pitfall(28)
async def test_timer_times_keep_their_fractions(storage: Storage, shift: Shift) -> None:
    await sleeping(storage, "i-1", timedelta(seconds=1.9))
    shift(storage, 1)
    assert await storage.find_expired_timers() == []
    assert not await storage.fire_timer("i-1", "t")
    shift(storage, 2)
    assert [timer.timer_id for timer in await storage.find_expired_timers()] == ["t"]
    lease = await leased(storage, "i-2")
    waited = await storage.register_timer_subscription_and_release_lock(
        TimerSubscription("i-2", "at", AT, "at:1"), "i-2", "w1", lease=lease
    )
    assert waited.suspended
    shift(storage, 100 * 366 * 86400)
    assert [timer.expires_at for timer in await storage.find_expired_timers()][1:] == [AT]


async def test_registering_a_wait_releases_the_lease_in_the_same_commit(storage: Storage) -> None:
    lease = await sleeping(storage, "i-1")
    found = await storage.get_instance("i-1")
    assert found is not None
    assert (found.status, found.locked_by, found.lock_expires_at) == (WorkflowStatus.WAITING_FOR_TIMER, None, None)
    with pytest.raises(LeaseLostError):
        await storage.append_history(HistoryEvent("i-1", "late", "ActivityCompleted", b"1"), lease=lease)
    assert await storage.find_resumable_workflows() == []


async def test_register_and_release_without_a_lease_checks_the_worker(storage: Storage, shift: Shift) -> None:
    await leased(storage, "i-1")
    timer = TimerSubscription("i-1", "t")
    with pytest.raises(LeaseLostError):
        await storage.register_timer_subscription_and_release_lock(timer, "i-1", "w2", after=SOON)
    assert (await storage.register_timer_subscription_and_release_lock(timer, "i-1", "w1", after=SOON)).suspended
    shift(storage, 11)
    assert await storage.fire_timer("i-1", "t")
    assert await recorded(storage, "i-1") == [("t", "TimerExpired")]


async def test_timer_that_is_due_does_not_suspend(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    past = TimerSubscription("i-1", "t", datetime(2020, 1, 1, tzinfo=UTC), "t:1")
    found = await storage.register_timer_subscription_and_release_lock(past, "i-1", "w1", lease=lease)
    assert (found.suspended, found.ready) == (False, ("t:1",))
    assert await status(storage, "i-1") is WorkflowStatus.RUNNING
    await storage.append_history(HistoryEvent("i-1", "s", "ActivityCompleted", b"1"), lease=lease)
    assert not await storage.fire_timer("i-1", "t", lease=lease)  # nothing was registered


async def test_expired_timers_of_waiting_instances_are_listed_oldest_first(storage: Storage, shift: Shift) -> None:
    for n, seconds in enumerate([30, 10, 20, 10]):
        await sleeping(storage, f"i-{n}", timedelta(seconds=seconds))
    await leased(storage, "running")
    await storage.register_timer_subscription(TimerSubscription("running", "t"), after=timedelta(seconds=1))
    shift(storage, 25)
    assert [timer.instance_id for timer in await storage.find_expired_timers()] == ["i-1", "i-3", "i-2"]
    assert [timer.instance_id for timer in await storage.find_expired_timers(2)] == ["i-1", "i-3"]
    (first, *_) = await storage.find_expired_timers(1)
    assert (first.timer_id, first.activity_id) == ("t", "t:1")
    assert first.expires_at == await storage.next_due_at()


async def test_a_timer_fires_once(storage: Storage, shift: Shift) -> None:
    await sleeping(storage, "i-1")
    shift(storage, 11)
    assert [await storage.fire_timer("i-1", "t"), await storage.fire_timer("i-1", "t")] == [True, False]
    events, _ = await storage.get_history_paginated("i-1")
    assert [(event.activity_id, event.event_type) for event in events] == [("t:1", "TimerExpired")]
    payload = json.loads(events[0].event_data or b"")
    assert (payload["result"], payload["timer_id"], payload["completed"]) == (None, "t", True)
    assert datetime.fromisoformat(payload["expires_at"]).tzinfo is not None
    assert await storage.find_resumable_workflows() == [ResumableWorkflow("i-1", "wf")]
    assert await storage.next_due_at() is None
    await storage.update_instance_status("i-1", WorkflowStatus.WAITING_FOR_MESSAGE)
    assert await storage.find_expired_timers() == []  # it is removed, not only inactive


async def test_many_timers_fire_in_one_commit(storage: Storage, shift: Shift) -> None:
    for n in range(4):
        await sleeping(storage, f"i-{n}")
    await sleeping(storage, "later", timedelta(seconds=60))
    await storage.register_timer_subscription(TimerSubscription("i-2", "u", activity_id="u:1"), after=timedelta(0))
    shift(storage, 11)
    assert await storage.try_acquire_lock("i-3", "w2", 10) is not None
    timers = [("i-2", "t"), ("nobody", "t"), ("i-0", "t"), ("i-3", "t"), ("later", "t"), ("i-2", "u"), ("i-0", "t")]
    assert await storage.fire_timers(timers) == [True, False, True, False, False, False, False]
    assert await recorded(storage, "i-0") == [("t:1", "TimerExpired")]
    assert await recorded(storage, "i-2") == [("t:1", "TimerExpired")]  # its other timer is not affected
    assert sorted(it.instance_id for it in await storage.find_resumable_workflows()) == ["i-0", "i-2"]
    assert [await status(storage, f"i-{n}") for n in (1, 3)] == [WorkflowStatus.WAITING_FOR_TIMER] * 2
    assert await storage.fire_timers([]) == []


async def test_batch_of_timers_is_atomic_and_has_limits(storage: Storage, shift: Shift) -> None:
    for n in range(2):
        await sleeping(storage, f"i-{n}")
    shift(storage, 11)
    timers = [(f"i-{n}", "t") for n in range(2)]
    with pytest.raises(LimitError):
        await storage.fire_timers([*timers, ("i-2", "t ")])
    with pytest.raises(LimitError):
        await storage.fire_timers([("i-0", f"t-{n}") for n in range(1001)])
    with pytest.raises(ZeroDivisionError):
        async with storage.transaction():
            assert await storage.fire_timers(timers) == [True, True]
            _ = 1 / 0
    assert [await storage.get_history_count(f"i-{n}") for n in range(2)] == [0, 0]
    assert await storage.fire_timers(timers) == [True, True]


async def test_two_batches_fire_each_timer_once(storage: Storage, peer: Storage, shift: Shift) -> None:
    timers = [(f"i-{n}", "t") for n in range(12)]
    for instance_id, _ in timers:
        await sleeping(storage, instance_id)
    shift(storage, 11)
    shift(peer, 11)
    found = await asyncio.gather(storage.fire_timers(timers), peer.fire_timers(timers[::-1]))
    rest = await storage.fire_timers(timers)  # a caller that found a row locked by another one skipped it
    assert sum(map(sum, (*found, rest))) == len(timers)
    assert [await storage.get_history_count(instance_id) for instance_id, _ in timers] == [1] * len(timers)


async def test_timer_id_is_escaped_in_the_payload(storage: Storage, shift: Shift) -> None:
    name = "ä\"\\u0001' %s :x {y}"
    await sleeping(storage, "i-1", timer_id=name)
    shift(storage, 11)
    assert await storage.fire_timer("i-1", name)
    (event, *_), _ = await storage.get_history_paginated("i-1")
    assert json.loads(event.event_data or b"")["timer_id"] == name


async def test_timer_does_not_fire_early_or_while_the_instance_is_leased(storage: Storage, shift: Shift) -> None:
    await sleeping(storage, "i-1")
    assert not await storage.fire_timer("i-1", "t")
    shift(storage, 11)
    held = await storage.try_acquire_lock("i-1", "w2", 10)
    assert held is not None
    assert not await storage.fire_timer("i-1", "t")
    assert not await storage.fire_timer("i-1", "other")
    assert not await storage.fire_timer("nobody", "t")
    shift(storage, 22)
    assert await storage.fire_timer(
        "i-1", "t"
    )  # that lease has expired: the instance is taken, and the holder fenced off
    with pytest.raises(LeaseLostError):
        await storage.append_history(HistoryEvent("i-1", "late", "ActivityCompleted", b"1"), lease=held)


async def test_lease_holder_fires_its_own_timers(storage: Storage, shift: Shift) -> None:
    lease = await leased(storage, "i-1")
    await storage.register_timer_subscription(TimerSubscription("i-1", "t", activity_id="t:1"), after=SOON, lease=lease)
    assert not await storage.fire_timer("i-1", "t", lease=lease)
    shift(storage, 11)
    assert not await storage.fire_timer("i-1", "t")
    assert await storage.fire_timer("i-1", "t", lease=lease)
    await storage.append_history(HistoryEvent("i-1", "s", "ActivityCompleted", b"1"), lease=lease)
    await storage.complete_and_release(lease, b"1")
    with pytest.raises(LeaseLostError):
        await storage.fire_timer("i-1", "t", lease=lease)


@pytest.mark.pitfall(10)
async def test_timer_whose_event_is_already_recorded_resumes_the_run(storage: Storage, shift: Shift) -> None:
    """As Edda leaves it when it dies between recording and removing."""
    await sleeping(storage, "i-1")
    await storage.append_history(HistoryEvent("i-1", "t:1", "TimerExpired", b'{"result": null}'))
    shift(storage, 11)
    assert await storage.fire_timer("i-1", "t")
    assert await storage.find_expired_timers() == []
    assert await storage.get_history_count("i-1") == 1
    assert await storage.find_resumable_workflows() == [ResumableWorkflow("i-1", "wf")]


@pytest.mark.pitfall(10)
async def test_run_is_resumed_again_if_its_worker_dies_after_a_timer(storage: Storage, shift: Shift) -> None:
    await sleeping(storage, "i-1")
    shift(storage, 11)
    assert await storage.fire_timer("i-1", "t")
    assert await storage.try_acquire_lock("i-1", "w2", 10) is not None
    shift(storage, 30)
    assert [info.instance_id for info in await storage.cleanup_stale_locks()] == ["i-1"]


async def test_firing_a_timer_is_atomic(storage: Storage, shift: Shift) -> None:
    await sleeping(storage, "i-1")
    shift(storage, 11)
    await storage.begin_transaction()
    assert await storage.fire_timer("i-1", "t")
    await storage.rollback_transaction()
    assert await status(storage, "i-1") is WorkflowStatus.WAITING_FOR_TIMER
    assert await storage.get_history_count("i-1") == 0
    assert await storage.fire_timer("i-1", "t")


@pytest.mark.pitfall(13)
async def test_a_finished_instance_has_no_timers(storage: Storage, shift: Shift) -> None:
    await sleeping(storage, "i-1")
    await storage.cancel_instance("i-1", "enough")
    shift(storage, 11)
    assert await storage.find_expired_timers() == []
    assert not await storage.fire_timer("i-1", "t")
    assert await status(storage, "i-1") is WorkflowStatus.CANCELLED
    with pytest.raises(InvalidTransitionError):
        await storage.register_timer_subscription(TimerSubscription("i-1", "t"), after=SOON)


async def test_removing_a_timer_is_fenced_and_idempotent(storage: Storage) -> None:
    lease = await sleeping(storage, "i-1")
    with pytest.raises(LeaseLostError):
        await storage.remove_timer_subscription("i-1", "t", lease=lease)
    for _ in range(2):
        await storage.remove_timer_subscription("i-1", "t")
    assert await storage.next_due_at() is None


async def test_invalid_timer_is_refused(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    with pytest.raises(InstanceNotFoundError):
        await storage.register_timer_subscription(TimerSubscription("nobody", "t"), after=SOON)
    for timer, after in [
        (TimerSubscription("i-1", "t"), None),
        (TimerSubscription("i-1", "t", AT), SOON),
        (TimerSubscription("i-1", "t", AT.replace(tzinfo=None)), None),
        (TimerSubscription("i-1", "t"), timedelta(seconds=-1)),
        (TimerSubscription("i-1", "t"), timedelta(days=40000)),
        (TimerSubscription("i-1", ""), SOON),
        (TimerSubscription("i-1", "t" * 256), SOON),
    ]:
        with pytest.raises(LimitError):
            await storage.register_timer_subscription(timer, after=after, lease=lease)
    with pytest.raises(LimitError):
        await storage.register_timer_subscription_and_release_lock(TimerSubscription("i-1", "t", AT), "i-2", "w1")
    await new(storage, "i-2")
    with pytest.raises(LeaseLostError):
        await storage.register_timer_subscription_and_release_lock(TimerSubscription("i-2", "t", AT), "i-2", "w1")
