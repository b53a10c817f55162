"""Fencing and takeovers with real connections; a test continues when the other side is really blocked."""

import asyncio
from contextlib import nullcontext
from datetime import timedelta

import pytest

from perdure.database.operation import Again, Operation, Work
from perdure.errors import InstanceNotFoundError, InvalidTransitionError, LeaseLostError, WorkflowNotCancellableError
from perdure.model.records import ChannelMode, ChannelWait, HistoryEvent, Lease, TimerSubscription, TimerWait
from perdure.model.states import WorkflowStatus
from perdure.storage import fences
from perdure.storage.fences import fence
from perdure.storage.instances import finish
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import leased, new, status
from tests.support.blocking import blocked
from tests.support.storages import shift


def step(n: object, instance_id: str = "i-1") -> HistoryEvent:
    return HistoryEvent(instance_id, f"s:{n}", "ActivityCompleted", b"1")


def one_writer(storage: SQLStorage) -> bool:
    """On SQLite even asking has to wait for the file."""
    return storage._backend.driver.name == "sqlite"


@pytest.mark.pitfall(1)
async def test_stale_worker_cannot_append_during_an_uncommitted_takeover(storage: SQLStorage, peer: SQLStorage) -> None:
    """The successor has taken the row and not committed yet; the old owner's write waits, and then is refused."""
    lease = await leased(storage, "i-1", timeout_sec=10)
    shift(peer, 20)
    async with peer.transaction():
        taken = await peer.try_acquire_lock("i-1", "w2", 60)
        assert taken is not None
        stale = asyncio.create_task(storage.append_history(step(1), lease=lease))
        await blocked(peer, stale)
    with pytest.raises(LeaseLostError):
        await stale
    assert await storage.get_history_count("i-1") == 0


@pytest.mark.pitfall(1)
async def test_stale_worker_cannot_append_a_batch_during_an_uncommitted_takeover(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    lease, other = await leased(storage, "i-1", timeout_sec=10), await leased(storage, "i-2")
    shift(peer, 20)
    async with peer.transaction():
        assert await peer.try_acquire_lock("i-1", "w2", 60) is not None
        batch = asyncio.create_task(storage.append_histories([(step(1), lease), (step(1, "i-2"), other)]))
        await blocked(peer, batch)
    assert [type(answer) for answer in await batch] == [LeaseLostError, int]


async def test_uncommitted_fenced_write_prevents_the_takeover(storage: SQLStorage, peer: SQLStorage) -> None:
    """The old owner has written and not committed; an acquirer does not wait, and gets nothing until it is over."""
    lease = await leased(storage, "i-1", timeout_sec=10)
    shift(peer, 20)
    async with storage.transaction():
        await storage.append_history(step(1), lease=lease)
        if not one_writer(storage):
            assert await asyncio.wait_for(peer.try_acquire_lock("i-1", "w2", 60), 5) is None
    assert await peer.try_acquire_lock("i-1", "w2", 60) is not None
    assert await peer.get_history_count("i-1") == 1


@pytest.mark.parametrize("ended", ["completed", "failed"])
async def test_ending_an_instance_removes_timers_registered_while_it_was_blocked(
    storage: SQLStorage, peer: SQLStorage, ended: str
) -> None:
    """A statement sees what was there when it began: not the timer of the transaction that it then waited for."""
    lease = await leased(storage, "i-1")
    async with peer.transaction():
        await peer.register_timer_subscription(TimerSubscription("i-1", "t"), after=timedelta(hours=1))
        if ended == "failed":
            end = asyncio.create_task(storage.update_instance_status("i-1", WorkflowStatus.FAILED))
        else:
            end = asyncio.create_task(storage.complete_and_release(lease, b"1"))
        await blocked(peer, end)
    await end
    assert await status(storage, "i-1") == ended
    assert await storage.db().fetch("SELECT timer_id FROM workflow_timer_subscriptions") == []


@pytest.mark.parametrize("on_message", [False, True], ids=["timer", "message"])
async def test_suspend_drops_waits_registered_while_it_was_blocked(
    storage: SQLStorage, peer: SQLStorage, on_message: bool
) -> None:
    lease = await leased(storage, "i-1")
    await storage.subscribe_to_channel("i-1", "news", ChannelMode.BROADCAST)
    hour = timedelta(hours=1)
    wait = ChannelWait("news", "r", after=hour) if on_message else TimerWait("t1", "s", after=hour)
    async with peer.transaction():
        await peer.register_timer_subscription(TimerSubscription("i-1", "t2"), after=hour, lease=lease)
        suspending = asyncio.create_task(storage.suspend(lease, [wait]))
        await blocked(peer, suspending)
    assert (await suspending).suspended
    left = await storage.db().fetch("SELECT timer_id FROM workflow_timer_subscriptions")
    assert left == ([] if on_message else [("t1",)])


@pytest.mark.parametrize("database", ["postgresql", "mysql"], indirect=True)
async def test_message_claimed_while_a_cleanup_was_blocked_is_released(storage: SQLStorage, peer: SQLStorage) -> None:
    lease = await leased(storage, "i-1")
    message = await storage.publish_to_channel("jobs", b"1")
    await storage.deliver_pending()  # no run waits: the channel's mark is gone
    marked = "SELECT channel FROM perdure_channels WHERE dirty_at IS NOT NULL"
    assert await storage.db().fetch(marked) == []
    async with peer.transaction():
        assert await peer.claim_channel_message(message, "i-1", lease=lease)
        cleaning = asyncio.create_task(storage.cleanup_instance_subscriptions("i-1", lease=lease))
        await blocked(peer, cleaning)
    await cleaning
    assert await storage.db().fetch(marked) == [("jobs",)]


def test_state_change_whose_row_appeared_meanwhile_is_repeated() -> None:
    """Whatever it was that it did not find: fed by hand, as below."""
    move = finish("i-1", WorkflowStatus.COMPLETED, "1", None)
    next(move)
    move.send(0)
    with pytest.raises(Again):
        move.send([("running", 1, "w1", "wf")])


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside"])
@pytest.mark.parametrize("database", ["postgresql", "mysql"], indirect=True)
async def test_operation_that_asks_to_be_repeated_is_repeated(storage: SQLStorage, inside: bool) -> None:
    runs = 0

    def look_twice() -> Operation[int]:
        nonlocal runs
        runs += 1
        yield fences.S.fence(instance_id="i-1", token=None, worker_id=None)
        if runs < 3:
            raise Again
        return runs

    for single in (True, False):
        runs = 0
        async with storage.transaction() if inside else nullcontext():
            assert await storage._run(Work(look_twice, single=single)) == 3


def test_instance_created_after_the_fence_check_is_not_found() -> None:
    """No connection can be stopped between the two looks, so the operation is fed by hand."""
    write = fence("i-1", None)
    next(write)
    write.send(0)  # no row
    with pytest.raises(InstanceNotFoundError):
        write.send([("running", 1, "w1", "wf")])


@pytest.mark.pitfall(45)
async def test_completion_after_an_uncommitted_cancel_loses_its_lease(storage: SQLStorage, peer: SQLStorage) -> None:
    lease = await leased(storage, "i-1")
    async with peer.transaction():
        await peer.cancel_instance("i-1", "too late?")
        completion = asyncio.create_task(storage.complete_and_release(lease, b"1"))
        await blocked(peer, completion)
    with pytest.raises(LeaseLostError):
        await completion
    found = await storage.get_instance("i-1")
    assert found is not None
    assert (found.status, found.output_data) == (WorkflowStatus.CANCELLED, None)


@pytest.mark.pitfall(45)
@pytest.mark.parametrize("compensate", [False, True])
async def test_cancel_after_an_uncommitted_completion_is_refused(
    storage: SQLStorage, peer: SQLStorage, compensate: bool
) -> None:
    lease = await leased(storage, "i-1")
    async with peer.transaction():
        await peer.complete_and_release(lease, b"1")
        cancel = asyncio.create_task(storage.cancel_instance("i-1", "too late", compensate=compensate))
        await blocked(peer, cancel)
    with pytest.raises(WorkflowNotCancellableError):
        await cancel
    assert await storage.get_history_count("i-1") == 0


async def test_status_update_without_a_lease_sees_the_state_it_was_blocked_by(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    await new(storage, "i-1")
    async with peer.transaction():
        await peer.update_instance_output("i-1", b"1")
        late = asyncio.create_task(storage.update_instance_status("i-1", WorkflowStatus.COMPENSATING))
        await blocked(peer, late)
    with pytest.raises(InvalidTransitionError):
        await late


async def test_concurrent_appends_of_the_same_step_record_it_once(storage: SQLStorage, peer: SQLStorage) -> None:
    lease = await leased(storage, "i-1")
    async with peer.transaction():
        first = await peer.append_history(step(1), lease=lease)
        second = asyncio.create_task(storage.append_history(step(1), lease=lease))
        await blocked(peer, second)
    assert await second == first
    assert await storage.get_history_count("i-1") == 1


async def test_heartbeat_during_a_transaction_of_its_run_loses_no_lease(storage: SQLStorage, peer: SQLStorage) -> None:
    lease, other = await leased(storage, "i-1"), await leased(storage, "i-2")
    async with peer.transaction():
        await peer.append_history(step(1), lease=lease)
        beat = asyncio.create_task(storage.refresh_locks([lease, other], 60))
        if one_writer(storage):
            await blocked(peer, beat)
        else:
            renewed = await asyncio.wait_for(beat, 5)  # it does not wait for the run's transaction
            assert renewed[0] == lease
            assert renewed[1] is not None
            assert renewed[1].expires_at > other.expires_at + timedelta(seconds=10)
    assert None not in await beat


@pytest.mark.pitfall(27)
async def test_sweep_keeps_a_lease_with_an_uncommitted_renewal(storage: SQLStorage, peer: SQLStorage) -> None:
    lease = await leased(storage, "i-1", timeout_sec=10)
    shift(storage, 20)
    shift(peer, 20)
    async with peer.transaction():
        await peer.refresh_lock("i-1", lease.worker_id, 60, lease=lease)
        sweep = asyncio.create_task(storage.cleanup_stale_locks())
        if one_writer(storage):
            await blocked(peer, sweep)
        else:
            await asyncio.wait_for(sweep, 5)
    assert await sweep == []
    await storage.append_history(step(1), lease=lease)


async def test_deadlock_in_a_transaction_is_raised(storage: SQLStorage, peer: SQLStorage) -> None:
    """Two transactions lock two rows in opposite order: one commits, the other gets a conflict error."""
    if one_writer(storage):
        return  # the second transaction begins after the first
    leases = {"i-1": await leased(storage, "i-1"), "i-2": await leased(storage, "i-2")}
    mine, theirs = asyncio.Event(), asyncio.Event()
    answers = await asyncio.gather(
        _cross(storage, leases, ["i-1", "i-2"], mine, theirs),
        _cross(peer, leases, ["i-2", "i-1"], theirs, mine),
        return_exceptions=True,
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["NoneType", "TransactionConflictError"]
    assert await storage.get_history_count("i-1") + await storage.get_history_count("i-2") == 2


async def _cross(
    side: SQLStorage, leases: dict[str, Lease], order: list[str], done: asyncio.Event, wait: asyncio.Event
) -> None:
    async with side.transaction():
        for instance_id in order:
            await side.append_history(step(order[0], instance_id), lease=leases[instance_id])
            done.set()
            await wait.wait()


async def test_deadlock_between_operations_is_retried_internally(storage: SQLStorage, peer: SQLStorage) -> None:
    """Many batches over the same rows in opposite order: no caller gets a deadlock error."""
    leases = [await leased(storage, f"i-{n}") for n in range(6)]

    async def batch(side: SQLStorage, n: int) -> list[object]:
        order = leases if n % 2 else leases[::-1]
        items = [(HistoryEvent(lease.instance_id, f"b:{n}", "ActivityCompleted", b"1"), lease) for lease in order]
        return list(await side.append_histories([*items, *items[:1]]))  # a step twice takes the way one by one

    answers = await asyncio.gather(*(batch([storage, peer][n % 2], n) for n in range(16)))
    assert all(isinstance(answer, int) for batch in answers for answer in batch)
