"""Test how a backend creates an instance with the first events of its history and with timers."""

from datetime import UTC, datetime, timedelta

import pytest

from perdure.errors import (
    HistoryConflictError,
    InstanceExistsError,
    InvalidTransitionError,
    LeaseLostError,
    LimitError,
)
from perdure.model.records import (
    ChannelMode,
    CompensationEntry,
    HistoryEvent,
    Lease,
    ParentLink,
    TimerWait,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, leased

LATER = WorkflowInstance("i-1", "wf", status=WorkflowStatus.WAITING_FOR_TIMER)
NOW = WorkflowInstance("i-1", "wf")
DAY = timedelta(days=1)


def event(activity_id: str, data: bytes = b"{}", instance_id: str = "i-1") -> HistoryEvent:
    return HistoryEvent(instance_id, activity_id, "Noted", data)


async def recorded(storage: Storage) -> list[tuple[str, bytes | None]]:
    events, _ = await storage.get_history_paginated("i-1")
    return [(each.activity_id, each.event_data) for each in events]


async def test_first_events_are_stored_in_their_order(storage: Storage) -> None:
    await storage.create_instance(NOW, events=[event("b", b'{"n": 1}'), event("a")])
    assert await recorded(storage) == [("b", b'{"n": 1}'), ("a", b"{}")]
    found = await storage.get_instance("i-1")
    assert found is not None
    assert (found.status, found.current_activity_id) == (WorkflowStatus.RUNNING, "a")


async def test_a_timer_wakes_the_new_instance(storage: Storage, shift: Shift) -> None:
    await storage.create_instance(LATER, timers=[TimerWait("t", "begin", after=DAY)])
    assert not await storage.find_expired_timers()
    shift(storage, 2 * DAY.total_seconds())
    (timer,) = await storage.find_expired_timers()
    assert (timer.instance_id, timer.timer_id, timer.activity_id) == ("i-1", "t", "begin")
    assert await storage.fire_timer("i-1", "t")
    found = await storage.get_instance("i-1")
    assert found is not None
    assert found.status is WorkflowStatus.RUNNING


async def test_a_timer_may_have_a_time(storage: Storage) -> None:
    await storage.create_instance(LATER, timers=[TimerWait("t", "t", datetime(2020, 1, 2, tzinfo=UTC))])
    (timer,) = await storage.find_expired_timers()
    assert timer.expires_at == datetime(2020, 1, 2, tzinfo=UTC)


async def test_a_lease_comes_with_the_first_rows(storage: Storage) -> None:
    lease = await storage.create_instance(NOW, worker_id="w", events=[event("a")])
    assert lease is not None
    await storage.append_history(event("b"), lease=lease)
    assert await recorded(storage) == [("a", b"{}"), ("b", b"{}")]


async def test_an_existing_instance_gets_no_rows(storage: Storage) -> None:
    await storage.create_instance(NOW)
    with pytest.raises(InstanceExistsError):
        await storage.create_instance(LATER, events=[event("a")], timers=[TimerWait("t", "t", after=DAY)])
    assert await recorded(storage) == []
    assert not await storage.get_waits(["i-1"])
    found = await storage.get_instance("i-1")
    assert found is not None
    assert (found.status, found.current_activity_id) == (WorkflowStatus.RUNNING, None)


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a transaction"])
async def test_a_rejected_event_leaves_nothing(storage: Storage, inside: bool) -> None:
    twice = [event("a", b'{"n": 1}'), event("a", b'{"n": 2}')]
    if inside:
        async with storage.transaction():
            with pytest.raises(HistoryConflictError):
                await storage.create_instance(NOW, events=twice)
    else:
        with pytest.raises(HistoryConflictError):
            await storage.create_instance(NOW, events=twice)
    assert await storage.get_instance("i-1") is None
    await storage.create_instance(NOW)


async def test_rows_of_another_instance_are_rejected(storage: Storage) -> None:
    with pytest.raises(LimitError, match="belongs to run 'i-2'"):
        await storage.create_instance(NOW, events=[event("a", instance_id="i-2")])
    assert await storage.get_instance("i-1") is None


@pytest.mark.parametrize("times", [(None, None), (datetime(2020, 1, 2, tzinfo=UTC), DAY)], ids=["none", "two"])
async def test_a_timer_needs_one_time(storage: Storage, times: tuple[datetime | None, timedelta | None]) -> None:
    with pytest.raises(LimitError):
        await storage.create_instance(LATER, timers=[TimerWait("t", "t", *times)])
    assert await storage.get_instance("i-1") is None


async def test_an_instance_that_has_ended_takes_no_timer(storage: Storage) -> None:
    ended = WorkflowInstance("i-1", "wf", status=WorkflowStatus.COMPLETED)
    with pytest.raises(InvalidTransitionError):
        await storage.create_instance(ended, timers=[TimerWait("t", "t", after=DAY)])
    assert await storage.get_instance("i-1") is None


async def test_the_rows_of_a_rolled_back_transaction_are_gone(storage: Storage) -> None:
    with pytest.raises(ZeroDivisionError):
        async with storage.transaction():
            await storage.create_instance(LATER, events=[event("a")], timers=[TimerWait("t", "t", after=DAY)])
            raise ZeroDivisionError
    assert await storage.get_instance("i-1") is None
    assert await recorded(storage) == []


def parent_of(lease: Lease) -> ParentLink:
    return ParentLink(lease, "ends:parent", CompensationEntry(lease.instance_id, "step:1", "undo", b'{"child": "i-1"}'))


async def test_a_child_is_stored_with_what_its_parent_needs(storage: Storage) -> None:
    await storage.publish_to_channel("ends:parent", b'{"n": 0}')
    lease = await leased(storage, "parent")
    await storage.create_instance(NOW, events=[event("link")], parent=parent_of(lease))
    await storage.publish_to_channel("ends:parent", b'{"n": 1}')
    found = await storage.get_channel_subscription("parent", "ends:parent")
    assert found is not None
    assert found.mode is ChannelMode.BROADCAST
    (message,) = await storage.get_pending_channel_messages_for_instance("parent", "ends:parent")
    assert message.data == b'{"n": 1}'
    (entry,) = await storage.get_compensations("parent")
    assert (entry.activity_id, entry.activity_name, entry.args) == ("step:1", "undo", b'{"child": "i-1"}')
    assert not await storage.get_compensations("i-1")
    assert await recorded(storage) == [("link", b"{}")]


async def test_a_parent_that_lost_its_lease_creates_no_child(storage: Storage) -> None:
    lease = await leased(storage, "parent")
    await storage.release_lock("parent", lease.worker_id, lease=lease)
    with pytest.raises(LeaseLostError):
        await storage.create_instance(NOW, parent=parent_of(lease))
    assert await storage.get_instance("i-1") is None
    assert await storage.get_channel_subscription("parent", "ends:parent") is None


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a transaction"])
async def test_a_child_whose_id_is_taken_leaves_its_parent_unchanged(storage: Storage, inside: bool) -> None:
    lease = await leased(storage, "parent")
    await storage.create_instance(NOW)
    if inside:
        async with storage.transaction():
            with pytest.raises(InstanceExistsError):
                await storage.create_instance(NOW, parent=parent_of(lease))
    else:
        with pytest.raises(InstanceExistsError):
            await storage.create_instance(NOW, parent=parent_of(lease))
    assert await storage.get_channel_subscription("parent", "ends:parent") is None
    assert not await storage.get_compensations("parent")


async def test_a_compensation_of_another_parent_is_rejected(storage: Storage) -> None:
    lease = await leased(storage, "parent")
    entry = CompensationEntry("other", "step:1", "undo")
    with pytest.raises(LimitError, match="belongs to run 'other'"):
        await storage.create_instance(NOW, parent=ParentLink(lease, "ends:parent", entry))
    assert await storage.get_instance("i-1") is None
