"""Test how a backend handles an instance that waits for several things."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.errors import (
    ChannelModeConflictError,
    InstanceNotFoundError,
    InvalidJSONPathError,
    InvalidTransitionError,
    LeaseLostError,
    LimitError,
    NotSubscribedError,
)
from perdure.model import limits
from perdure.model.records import (
    ChannelMode,
    ChannelWait,
    HistoryEvent,
    Lease,
    OutgoingMessage,
    Suspension,
    TimerSubscription,
    TimerWait,
    Wait,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, again, leased, listening, new, recorded, status

PAST = datetime(2020, 1, 1, tzinfo=UTC)


def sec(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def nested(depth: int) -> list[object]:
    """Return a list in a list, nested so many times."""
    found: list[object] = []
    for _ in range(depth):
        found = [found]
    return found


async def subscribed(storage: Storage, instance_id: str, *channels: str) -> Lease:
    """Create a leased instance that is subscribed to channels."""
    lease = await leased(storage, instance_id)
    for channel in channels:
        await storage.subscribe_to_channel(instance_id, channel, ChannelMode.BROADCAST, lease=lease)
    return lease


async def test_status_is_that_of_the_wait_with_the_earliest_deadline(storage: Storage) -> None:
    timer, message = WorkflowStatus.WAITING_FOR_TIMER, WorkflowStatus.WAITING_FOR_MESSAGE
    cases: list[tuple[list[Wait], WorkflowStatus]] = [
        ([TimerWait("t", "t:1", after=sec(5))], timer),
        ([ChannelWait("c", "r:1")], message),
        ([ChannelWait("c", "r:1"), TimerWait("t", "t:1", after=sec(500))], timer),
        ([ChannelWait("c", "r:1", after=sec(5)), TimerWait("t", "t:1", after=sec(9))], message),
        ([ChannelWait("c", "r:1", after=sec(9)), TimerWait("t", "t:1", after=sec(5))], timer),
    ]
    for n, (waits, expected) in enumerate(cases):
        lease = await subscribed(storage, f"i-{n}", "c")
        assert await storage.suspend(lease, waits) == Suspension(True)
        assert await status(storage, f"i-{n}") is expected
        found = await storage.get_instance(f"i-{n}")
        assert found is not None
        assert found.locked_by is None


async def test_first_event_of_any_kind_resumes_the_instance(storage: Storage, shift: Shift) -> None:
    waits: list[Wait] = [
        TimerWait("t", "t:1", after=sec(20)),
        ChannelWait("c", "r:1", after=sec(10)),
        ChannelWait("d", "r:2"),
    ]
    for instance_id in ("by-message", "by-timer", "by-time-out"):
        lease = await subscribed(storage, instance_id, "c", "d")
        assert (await storage.suspend(lease, waits)).suspended
    await storage.subscribe_to_channel("by-message", "mail", ChannelMode.DIRECT)
    await storage.unsubscribe_from_channel("by-timer", "d")
    await storage.unsubscribe_from_channel("by-time-out", "d")
    await storage.publish_to_channel("d", b"1")
    assert [found.instance_id for found in await storage.deliver_pending()] == ["by-message"]
    shift(storage, 11)
    assert await storage.expire_channel_wait("by-time-out", "c")
    assert not await storage.expire_channel_wait("by-message", "c")  # it is running
    shift(storage, 21)
    assert await storage.fire_timer("by-timer", "t")
    assert not await storage.fire_timer("by-message", "t")
    assert [await recorded(storage, i) for i in ("by-message", "by-timer", "by-time-out")] == [
        [("r:2", "ChannelMessageReceived")],
        [("t:1", "TimerExpired")],
        [("r:1", "MessageTimeout")],
    ]


async def test_suspend_returns_waits_that_are_ready(storage: Storage) -> None:
    lease = await subscribed(storage, "i-1", "c", "d")
    await storage.publish_to_channel("d", b"1")
    found = await storage.suspend(
        lease,
        [
            ChannelWait("c", "r:1"),
            ChannelWait("d", "r:2"),
            TimerWait("t", "t:1", expires_at=PAST),
            TimerWait("u", "u:1", after=sec(9)),
            TimerWait("v", "v:1", after=sec(0)),
        ],
    )
    assert found == Suspension(False, ("r:2", "t:1", "v:1"))
    assert await status(storage, "i-1") is WorkflowStatus.RUNNING
    assert await storage.next_due_at() == lease.expires_at  # there is no wait
    subscription = await storage.get_channel_subscription("i-1", "c")
    assert subscription is not None
    assert subscription.activity_id is None
    await storage.append_history(HistoryEvent("i-1", "s", "ActivityCompleted", b"1"), lease=lease)
    timed_out = await storage.suspend(lease, [ChannelWait("c", "r:1", timeout_at=PAST)])
    assert timed_out == Suspension(False, ("r:1",))
    assert await storage.suspend(lease, [ChannelWait("d", "r:2")]) == Suspension(False, ("r:2",))


async def test_wait_keeps_its_deadline_when_the_instance_resumes(storage: Storage, shift: Shift) -> None:
    waits: list[Wait] = [
        TimerWait("t", "t:1", after=sec(20)),
        ChannelWait("c", "r:1", after=sec(30)),
        ChannelWait("d", "r:2"),
    ]
    lease = await subscribed(storage, "i-1", "c", "d")
    assert (await storage.suspend(lease, waits)).suspended
    first = await storage.next_due_at()
    await storage.publish_to_channel("d", b"1")
    assert len(await storage.deliver_pending()) == 1
    assert await storage.next_due_at() is None  # it is running, and takes its own
    shift(storage, 10)
    taken = await storage.try_acquire_lock("i-1", "w1", 30)
    assert taken is not None
    assert (await storage.suspend(taken, waits[:2])).suspended
    assert await storage.next_due_at() == first
    shift(storage, 21)
    assert await storage.fire_timer("i-1", "t")
    taken = await storage.try_acquire_lock("i-1", "w1", 30)
    assert taken is not None
    assert (await storage.suspend(taken, waits[1:2])).suspended
    shift(storage, 31)
    assert [found.activity_id for found in await storage.find_expired_channel_subscriptions()] == ["r:1"]
    taken = await storage.try_acquire_lock("i-1", "w1", 30)
    assert taken is not None
    assert await storage.suspend(taken, waits[1:2]) == Suspension(False, ("r:1",))


async def test_suspend_uses_the_first_registered_time_of_a_timer(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    await storage.register_timer_subscription(
        TimerSubscription("i-1", "t", activity_id="t:1"), after=sec(60), lease=lease
    )
    assert (await storage.suspend(lease, [TimerWait("t", "t:1", PAST), TimerWait("u", "u:1", after=sec(90))])).suspended


async def test_suspend_drops_waits_that_are_not_repeated(storage: Storage, shift: Shift) -> None:
    lease = await subscribed(storage, "i-1", "c", "d")
    waits: list[Wait] = [
        TimerWait("t", "t:1", after=sec(5)),
        ChannelWait("c", "r:1", after=sec(5)),
        ChannelWait("d", "r:2"),
    ]
    assert (await storage.suspend(lease, waits)).suspended
    await storage.publish_to_channel("d", b"1")
    assert len(await storage.deliver_pending()) == 1
    assert await again(storage, "i-1", "d", activity_id="r:3")
    assert await storage.next_due_at() is None
    await storage.publish_to_channel("c", b"1")
    assert await storage.deliver_pending() == []  # no wait for it, and it is not lost
    shift(storage, 6)
    assert await storage.find_expired_timers() == []
    assert len(await storage.get_pending_channel_messages_for_instance("i-1", "c")) == 1
    await storage.publish_to_channel("d", b"2")
    await storage.deliver_pending()
    taken = await storage.try_acquire_lock("i-1", "w1", 30)
    assert taken is not None
    assert (await storage.suspend(taken, [TimerWait("u", "u:1", after=sec(50))])).suspended
    assert await storage.get_channel_subscribers_waiting("d") == []


async def test_registering_one_wait_keeps_the_other_waits(storage: Storage, shift: Shift) -> None:
    lease = await subscribed(storage, "i-1", "c", "d")
    await storage.register_timer_subscription(
        TimerSubscription("i-1", "t", activity_id="t:1"), after=sec(5), lease=lease
    )
    found = await storage.register_channel_receive_and_release_lock("i-1", "c", "w1", "r:1", after=sec(9), lease=lease)
    assert found == Suspension(True)
    assert await status(storage, "i-1") is WorkflowStatus.WAITING_FOR_MESSAGE
    shift(storage, 6)
    assert await storage.fire_timer("i-1", "t")
    assert await storage.try_acquire_lock("i-1", "w2", 30) is not None
    with pytest.raises(LeaseLostError):
        await storage.register_channel_receive_and_release_lock("i-1", "d", "w1", "r:2")
    assert (await storage.register_channel_receive_and_release_lock("i-1", "d", "w2", "r:2")).suspended
    assert [len(await storage.get_channel_subscribers_waiting(channel)) for channel in "cd"] == [1, 1]


@pytest.mark.pitfall(5)
async def test_message_published_before_the_wait_is_found(storage: Storage) -> None:
    lease = await subscribed(storage, "i-1", "c")
    await storage.publish_to_channel("c", b"1")
    assert await storage.deliver_pending() == []
    found = await storage.register_channel_receive_and_release_lock("i-1", "c", "w1", "r:1", lease=lease)
    assert found == Suspension(False, ("r:1",))


async def test_suspend_needs_a_current_lease_a_subscription_and_a_valid_state(storage: Storage) -> None:
    lease = await subscribed(storage, "i-1", "c")
    stale = Lease("i-1", "w1", lease.token - 1, lease.expires_at)
    for waits in ([ChannelWait("c", "r:1")], [TimerWait("t", "t:1", after=sec(5))]):
        with pytest.raises(LeaseLostError):
            await storage.suspend(stale, waits)
        with pytest.raises(InstanceNotFoundError):
            await storage.suspend(Lease("nobody", "w1", 1, lease.expires_at), waits)
    with pytest.raises(NotSubscribedError):
        await storage.suspend(lease, [ChannelWait("elsewhere", "r:1")])
    with pytest.raises(NotSubscribedError):
        await storage.suspend(lease, [ChannelWait("elsewhere", "r:1"), ChannelWait("c", "r:2")])
    later = ChannelWait("elsewhere", "r:2", subscribe=ChannelMode.COMPETING)  # the waits subscribe one after the other
    with pytest.raises(NotSubscribedError):
        await storage.suspend(lease, [ChannelWait("elsewhere", "r:1", where={"n": 1}), later])
    await storage.update_instance_status("i-1", WorkflowStatus.COMPENSATING, lease=lease)
    with pytest.raises(InvalidTransitionError):
        await storage.suspend(lease, [ChannelWait("c", "r:1")])
    with pytest.raises(InvalidTransitionError):
        await storage.suspend(lease, [TimerWait("t", "t:1", after=sec(5))])
    assert await storage.next_due_at() == lease.expires_at  # there is no wait
    await storage.update_instance_status("i-1", WorkflowStatus.FAILED, lease=lease)
    with pytest.raises(LeaseLostError):
        await storage.suspend(lease, [TimerWait("t", "t:1", after=sec(5))])


async def test_a_lease_suspends_once(storage: Storage, shift: Shift) -> None:
    lease = await subscribed(storage, "i-1", "c")
    assert (await storage.suspend(lease, [TimerWait("t", "t:1", after=sec(5))])).suspended
    for waits in ([ChannelWait("c", "r:1")], [TimerWait("u", "u:1", after=sec(1))]):
        with pytest.raises(LeaseLostError):
            await storage.suspend(lease, waits)
    shift(storage, 6)
    assert [timer.timer_id for timer in await storage.find_expired_timers()] == ["t"]


@pytest.mark.pitfall(13)
async def test_cancelled_instance_is_not_resumed_by_its_waits(storage: Storage, shift: Shift) -> None:
    lease = await subscribed(storage, "i-1", "c")
    waits: list[Wait] = [TimerWait("t", "t:1", after=sec(5)), ChannelWait("c", "r:1", after=sec(5))]
    assert (await storage.suspend(lease, waits)).suspended
    await storage.cancel_instance("i-1", "enough")
    shift(storage, 6)
    message = await storage.publish_to_channel("c", b"1")
    (offered,) = await storage.get_pending_channel_messages("c", message - 1)
    assert await storage.deliver_pending() == []
    assert await storage.deliver_channel_message("i-1", offered) is None
    assert not await storage.fire_timer("i-1", "t")
    assert not await storage.expire_channel_wait("i-1", "c")
    assert await storage.find_expired_channel_subscriptions() == []
    assert await status(storage, "i-1") is WorkflowStatus.CANCELLED
    assert await recorded(storage, "i-1") == [("workflow_cancelled", "WorkflowCancelled")]


async def test_many_instances_suspend_in_one_commit(storage: Storage) -> None:
    first, second = await subscribed(storage, "i-1", "c"), await subscribed(storage, "i-2", "c", "d")
    third, fourth = await subscribed(storage, "i-3"), await subscribed(storage, "i-4", "d")
    await storage.publish_to_channel("d", b"1")
    stale = Lease("i-4", "w9", fourth.token, fourth.expires_at)
    found = await storage.suspend_instances(
        [
            (stale, [ChannelWait("d", "r:1")]),
            (third, [TimerWait("t", "t:1", after=sec(5))]),
            (second, [ChannelWait("d", "r:1"), ChannelWait("c", "r:2")]),
            (first, [ChannelWait("c", "r:1"), TimerWait("t", "t:1", after=sec(5))]),
            (fourth, [ChannelWait("x" * 256, "r:1")]),
            (fourth, [ChannelWait("c", "r:1")]),
        ]
    )
    assert found[1:4] == [Suspension(True), Suspension(False, ("r:1",)), Suspension(True)]
    errors = [type(found[n]) for n in (0, 4, 5)]
    assert errors == [LeaseLostError, LimitError, NotSubscribedError]
    waiting = WorkflowStatus.WAITING_FOR_TIMER
    assert [await status(storage, f"i-{n}") for n in range(1, 5)] == [waiting, "running", waiting, "running"]
    assert await storage.suspend_instances([]) == []


def for_event(instance_id: str, **options: Any) -> list[Wait]:
    """Return the waits of an instance for an event that is published to all, or sent to it."""
    direct = f"e:{instance_id}"
    return [
        ChannelWait("e", "r:1", subscribe=ChannelMode.BROADCAST, **options),
        ChannelWait(direct, "r:1:to", subscribe=ChannelMode.DIRECT),
    ]


@pytest.mark.parametrize("alone", [True, False])
async def test_wait_subscribes_its_instance(storage: Storage, alone: bool) -> None:
    await storage.publish_to_channel("e", b"1")  # before the subscriptions
    leases = [await leased(storage, f"i-{n}") for n in range(1, 4)]
    await storage.publish_to_channel("e:i-3", b"3")
    items = [(lease, for_event(lease.instance_id)) for lease in leases]
    found = [await storage.suspend(*item) for item in items] if alone else await storage.suspend_instances(items)
    assert found == [Suspension(True), Suspension(True), Suspension(False, ("r:1:to",))]
    assert await storage.deliver_pending() == []
    await storage.publish_to_channel("e", b"2")
    delivered = await storage.deliver_pending()
    assert [(each.instance_id, each.activity_id) for each in delivered] == [("i-1", "r:1"), ("i-2", "r:1")]
    for n in range(1, 4):
        own = await storage.get_channel_subscription(f"i-{n}", "e")
        assert own is not None
        assert own.mode is ChannelMode.BROADCAST
        assert own.cursor_message_id == await storage.get_delivery_cursor(f"i-{n}", "e") > 0
    await storage.publish_to_channel("e:i-1", b"3")
    assert not await again(storage, "i-1", "e:i-1", activity_id="r:2")


async def test_suspension_keeps_the_subscription_of_a_wait_although_another_is_ready(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    due = TimerWait("t", "t:1", expires_at=PAST)
    assert await storage.suspend(lease, [due, *for_event("i-1")]) == Suspension(False, ("t:1",))
    message = await storage.publish_to_channel("e", b"1")
    pending = await storage.get_pending_channel_messages_for_instance("i-1", "e")
    assert [each.id for each in pending] == [message]


async def test_wait_subscribes_only_in_the_mode_of_its_channel(storage: Storage) -> None:
    await listening(storage, "i-1", "e", ChannelMode.COMPETING)
    second, third, fourth = [await leased(storage, f"i-{n}") for n in range(2, 5)]
    await storage.subscribe_to_channel("i-4", "f", ChannelMode.BROADCAST, lease=fourth)
    found = await storage.suspend_instances(
        [
            (second, for_event("i-2")),
            (third, [ChannelWait("e", "r:1", subscribe=ChannelMode.COMPETING)]),
            (fourth, [ChannelWait("f", "r:1", subscribe=ChannelMode.COMPETING)]),
        ]
    )
    assert [type(each) for each in found] == [ChannelModeConflictError, Suspension, ChannelModeConflictError]
    assert found[1] == Suspension(True)
    assert [await status(storage, f"i-{n}") for n in range(2, 5)] == ["running", "waiting_for_message", "running"]
    assert await storage.get_channel_subscription("i-2", "e:i-2") is None


async def test_batch_registers_waits_with_their_times_and_values(storage: Storage, shift: Shift) -> None:
    leases = [await leased(storage, f"i-{n}") for n in range(1, 5)]
    waits: list[list[Wait]] = [
        for_event("i-1", where={"n": 1}, after=sec(9)),
        [*for_event("i-2", where={"n": 2}), TimerWait("t", "t:1", after=sec(5))],
        [TimerWait("t", "t:1", expires_at=datetime.now(UTC) + sec(7)), TimerWait("u", "u:1", after=sec(99))],
        for_event("i-4", timeout_at=datetime.now(UTC) + sec(11)),
    ]
    assert await storage.suspend_instances(list(zip(leases, waits, strict=True))) == [Suspension(True)] * 4
    timer, message = WorkflowStatus.WAITING_FOR_TIMER, WorkflowStatus.WAITING_FOR_MESSAGE
    assert [await status(storage, f"i-{n}") for n in range(1, 5)] == [message, timer, timer, message]
    rows = await storage.get_instances([f"i-{n}" for n in range(1, 5)])
    assert [row and row.locked_by for row in rows] == [None] * 4
    await storage.publish_messages([OutgoingMessage("e", b'{"n": 2}'), OutgoingMessage("e", b'{"n": 3}')])
    assert sorted(each.instance_id for each in await storage.deliver_pending()) == ["i-2", "i-4"]
    shift(storage, 8)
    assert [each.timer_id for each in await storage.find_expired_timers()] == ["t"]
    assert await storage.find_expired_channel_subscriptions() == []
    shift(storage, 10)
    (due,) = await storage.find_expired_channel_subscriptions()
    assert (due.instance_id, due.channel, due.activity_id) == ("i-1", "e", "r:1")


async def test_lease_that_is_given_twice_suspends_once(storage: Storage) -> None:
    first, second = [await leased(storage, f"i-{n}") for n in (1, 2)]
    given: list[tuple[Lease, list[Wait]]] = [
        (lease, [TimerWait("t", "t:1", after=sec(5))]) for lease in (first, second, first)
    ]
    found = await storage.suspend_instances(given)
    assert found[:2] == [Suspension(True)] * 2
    assert isinstance(found[2], LeaseLostError)


@pytest.mark.parametrize(
    "waits",
    [
        [],
        [TimerWait("t", "t:1")],
        [TimerWait("t", "t:1", expires_at=PAST, after=sec(1))],
        [TimerWait("t", "", after=sec(1))],
        [ChannelWait("", "r:1")],
        [ChannelWait("c", "r:1", timeout_at=datetime(2030, 1, 1))],
        [ChannelWait("c", "r:1"), ChannelWait("d", "r:1")],
        [ChannelWait("c", "r:1"), ChannelWait("c", "r:1", where={"n": 1})],
        [ChannelWait("c", "r:1", where={f"p{n}": n for n in range(51)})],
        [ChannelWait("c", "r:1", where={"n": b"1"})],
        [ChannelWait("c", "r:1", subscribe="all")],  # type: ignore[arg-type]
        [ChannelWait("c", "r:1", where={"n": float("nan")})],
        [ChannelWait("c", "r:1", where={"n": [1, {2: 3}]})],
        [ChannelWait("c", "r:1", where={"n": nested(100_000)})],
        [TimerWait(f"t{n}", f"t:{n}", after=sec(1)) for n in range(limits.WAITS_MAX + 1)],
        [TimerWait("t", "t:1", after=sec(1)), TimerWait("t", "t:2", after=sec(1))],
    ],
)
async def test_invalid_wait_is_refused(storage: Storage, waits: list[Wait]) -> None:
    lease = await subscribed(storage, "i-1", "c", "d")
    with pytest.raises(LimitError):
        await storage.suspend(lease, waits)
    assert await status(storage, "i-1") is WorkflowStatus.RUNNING


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "x" * 256, 1])
async def test_wait_with_an_invalid_path_is_refused(storage: Storage, path: str) -> None:
    lease = await subscribed(storage, "i-1", "c")
    with pytest.raises(InvalidJSONPathError):
        await storage.suspend(lease, [ChannelWait("c", "r:1", where={"ok": 1, path: 1})])
    assert await status(storage, "i-1") is WorkflowStatus.RUNNING


async def test_next_due_time_is_the_earliest_timer_or_timeout(storage: Storage) -> None:
    at = datetime(2031, 1, 1, tzinfo=UTC)
    waits: list[Wait] = [
        TimerWait("t", "t:1", expires_at=at + sec(5)),
        ChannelWait("c", "r:1", timeout_at=at + sec(3)),
        ChannelWait("c", "r:1"),
    ]
    for n, wait in enumerate(waits):
        lease = await subscribed(storage, f"i-{n}", "c")
        assert (await storage.suspend(lease, [wait])).suspended
    assert await storage.next_due_at() == at + sec(3)
    await storage.clear_channel_waiting_state("i-1", "c")
    assert await storage.next_due_at() == at + sec(5)
    await listening(storage, "other", "d", after=sec(1))
    found = await storage.next_due_at()
    assert found is not None
    assert found < at


async def test_next_due_time_includes_the_end_of_leases(storage: Storage, shift: Shift) -> None:
    """A worker that sleeps until then takes over the instance of a dead worker."""
    lease = await leased(storage, "i-1", timeout_sec=20)
    assert await storage.next_due_at() == lease.expires_at
    later = await leased(storage, "i-2", timeout_sec=30)
    await new(storage, "free")  # can be taken now: it is found, not waited for
    assert await storage.next_due_at() == lease.expires_at
    shift(storage, 25)
    assert await storage.next_due_at() == later.expires_at
    await storage.update_instance_status("i-2", WorkflowStatus.COMPENSATING, lease=later)
    assert await storage.next_due_at() == later.expires_at
    waits = await leased(storage, "i-3", timeout_sec=500)
    assert (await storage.suspend(waits, [TimerWait("t", "t:1", after=sec(2))])).suspended
    found = await storage.next_due_at()
    assert found is not None
    assert found < later.expires_at
    await storage.cancel_instance("i-3")
    await storage.update_instance_status("i-2", WorkflowStatus.FAILED, lease=later)
    assert await storage.next_due_at() is None
    await storage.create_instance(
        WorkflowInstance("i-4", "wf", status=WorkflowStatus.WAITING_FOR_EVENT), worker_id="w1"
    )
    assert await storage.next_due_at() is None  # it cannot be resumed


async def test_next_work_time_includes_work_that_is_ready(storage: Storage) -> None:
    assert await storage.next_work_at() is None
    lease = await leased(storage, "i-1")
    assert await storage.next_work_at() == await storage.next_due_at() == lease.expires_at
    await storage.publish_to_channel("c", b"1")
    marked = await storage.next_work_at()
    assert marked is not None
    assert marked < lease.expires_at
    await storage.deliver_pending()
    assert await storage.next_work_at() == lease.expires_at
    await storage.release_lock("i-1", lease.worker_id, lease=lease)
    free = await storage.next_work_at()
    assert free is not None
    assert free < lease.expires_at
    assert await storage.next_due_at() is None


async def test_registered_waits_are_listed_in_order_of_registration(storage: Storage) -> None:
    lease = await subscribed(storage, "i-1", "c", "d")
    at = datetime(2031, 1, 1, tzinfo=UTC)
    waits = [ChannelWait("d", "r:2", at), ChannelWait("c", "r:1", where={"a": 1}), ChannelWait("d", "r:3")]
    assert await storage.get_channel_waits("i-1") == []
    assert (await storage.suspend(lease, waits)).suspended
    plain = [ChannelWait(wait.channel, wait.activity_id, wait.timeout_at) for wait in waits]
    assert await storage.get_channel_waits("i-1") == plain
    assert await storage.get_channel_waits("nobody") == []


async def test_waits_with_a_pending_message_are_found_without_writing(storage: Storage) -> None:
    lease = await subscribed(storage, "i-1", "c", "d")
    waits = [ChannelWait("c", "one", where={"n": 1}), ChannelWait("c", "two", where={"n": 2}), ChannelWait("c", "any")]
    waits += [ChannelWait("d", "none"), ChannelWait("not subscribed", "never")]
    assert await storage.pending_waits("i-1", []) == []
    assert await storage.pending_waits("i-1", waits) == []
    await storage.publish_to_channel("c", b'{"n": 2}')
    await storage.publish_to_channel("c", b'{"n": 3}')
    assert (
        {"two", "any"} <= set(await storage.pending_waits("i-1", waits)) <= {"one", "two", "any"}
    )  # keys may be missing
    assert await storage.suspend(lease, [waits[1]]) == Suspension(False, ("two",))  # creates the keys
    assert await storage.pending_waits("i-1", waits) == ["two", "any"]


async def test_wait_can_be_expired_by_activity_id(storage: Storage, shift: Shift) -> None:
    lease = await subscribed(storage, "i-1", "c")
    waits = [ChannelWait("c", "r:1", after=sec(1)), ChannelWait("c", "r:2", after=sec(2)), ChannelWait("c", "r:3")]
    assert (await storage.suspend(lease, waits)).suspended
    shift(storage, 5)
    assert not await storage.expire_channel_wait("i-1", "c", activity_id="r:3")
    assert not await storage.expire_channel_wait("i-1", "c", activity_id="r:9")
    assert await storage.expire_channel_wait("i-1", "c", activity_id="r:2")
    assert [wait.activity_id for wait in await storage.get_channel_waits("i-1")] == ["r:1", "r:3"]


async def test_waits_of_many_instances_are_listed(storage: Storage) -> None:
    for instance_id in ("i-1", "i-2", "i-3"):
        lease = await leased(storage, instance_id)
        await storage.subscribe_to_channel(instance_id, "c", ChannelMode.BROADCAST, lease=lease)
        waits: list[Wait] = [TimerWait("t", "2:timer", after=timedelta(hours=1)), ChannelWait("c", "1:receive")]
        assert (await storage.suspend(lease, waits)).suspended
    found = await storage.get_waits(["i-3", "i-1", "absent"])
    assert [(each.instance_id, each.activity_id, each.channel) for each in found] == [
        ("i-1", "1:receive", "c"),
        ("i-1", "2:timer", None),
        ("i-3", "1:receive", "c"),
        ("i-3", "2:timer", None),
    ]
    assert found[0].until is None
    assert found[1].until is not None
    assert await storage.get_waits([]) == []


async def test_batch_finds_the_messages_of_existing_subscriptions(storage: Storage) -> None:
    items: list[tuple[Lease, list[Wait]]] = []
    for n in range(1, 4):
        lease, channel = await leased(storage, f"i-{n}"), f"c-{n}"
        await storage.subscribe_to_channel(lease.instance_id, channel, ChannelMode.BROADCAST, lease=lease)
        items.append((lease, [ChannelWait(channel, "r:1", subscribe=ChannelMode.BROADCAST)]))
    await storage.publish_messages([OutgoingMessage("c-1", b"1"), OutgoingMessage("c-3", b"1")])
    ready = Suspension(False, ("r:1",))
    assert await storage.suspend_instances(items) == [ready, Suspension(True), ready]
