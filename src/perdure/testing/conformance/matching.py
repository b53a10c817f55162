"""Test how a backend handles waits that ask for values, several of them on one channel."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import InvalidJSONPathError, LeaseLostError, LimitError
from perdure.model.records import (
    ChannelDeliveryResult,
    ChannelMessage,
    ChannelMode,
    ChannelWait,
    Lease,
    OutgoingMessage,
    Suspension,
    TimerWait,
    Wait,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.testing.conformance.channels import pending, remaining
from perdure.testing.conformance.tools import Shift, leased, recorded, status

BROADCAST, COMPETING, DIRECT = ChannelMode.BROADCAST, ChannelMode.COMPETING, ChannelMode.DIRECT
RECEIVED, TIMED_OUT = "ChannelMessageReceived", "MessageTimeout"
WAITING, RUNNING = WorkflowStatus.WAITING_FOR_MESSAGE, WorkflowStatus.RUNNING

Where = dict[str, Any]


def sec(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def wait(activity_id: str, channel: str = "c", *, after: float | None = None, **where: Any) -> ChannelWait:
    """Return a wait for these values of the message's data."""
    return ChannelWait(channel, activity_id, after=None if after is None else sec(after), where=where or None)


async def subscribed(
    storage: Storage, instance_id: str = "i-1", channel: str = "c", mode: ChannelMode = BROADCAST
) -> Lease:
    """Create a leased instance that is subscribed to a channel."""
    lease = await leased(storage, instance_id)
    await storage.subscribe_to_channel(instance_id, channel, mode, lease=lease)
    return lease


async def waiting(storage: Storage, *waits: Wait, instance_id: str = "i-1") -> None:
    """Create an instance that is subscribed to the channel `c` and waits."""
    lease = await subscribed(storage, instance_id)
    assert await storage.suspend(lease, waits) == Suspension(True)


async def resumed(storage: Storage, instance_id: str = "i-1") -> Lease:
    """Return the new lease of an instance."""
    lease = await storage.try_acquire_lock(instance_id, "w1", 30)
    assert lease is not None
    return lease


async def waiting_again(storage: Storage, *waits: Wait, instance_id: str = "i-1") -> tuple[str, ...]:
    """Let an instance wait for these and nothing else; return what is ready instead, after which it is released."""
    lease = await resumed(storage, instance_id)
    found = await storage.suspend(lease, waits)
    if not found.suspended:
        await storage.release_lock(instance_id, "w1", lease=lease)
    return found.ready


async def publish(storage: Storage, *data: object, channel: str = "c") -> list[int]:
    """Publish messages with these data."""
    return [await storage.publish_to_channel(channel, json.dumps(each).encode()) for each in data]


async def publish_many(storage: Storage, data: Sequence[object], channel: str = "c") -> list[int]:
    """Publish many messages with these data."""
    messages = [OutgoingMessage(channel, json.dumps(each).encode()) for each in data]
    found: list[int] = []
    for start in range(0, len(messages), 1000):
        ids = await storage.publish_messages(messages[start : start + 1000])
        found += [number for number in ids if isinstance(number, int)]
    assert len(found) == len(data)
    return found


async def delivered(storage: Storage, limit: int = 0) -> list[tuple[str, str, int]]:
    """Return what a sweep delivers: instances, their steps and messages."""
    return [(each.instance_id, each.activity_id, each.message_id) for each in await storage.deliver_pending(limit)]


async def take(
    storage: Storage, lease: Lease, activity_id: str, channel: str = "c", **where: Any
) -> ChannelDeliveryResult | None:
    """Take a message as the holder of the lease."""
    offered = ChannelMessage(0, channel, "")
    return await storage.deliver_channel_message(
        lease.instance_id, offered, lease=lease, activity_id=activity_id, where=where or None
    )


async def cursor(storage: Storage, instance_id: str = "i-1", channel: str = "c") -> int:
    return await storage.get_delivery_cursor(instance_id, channel)


async def test_a_message_goes_to_the_wait_that_it_matches(storage: Storage) -> None:
    await waiting(storage, wait("a", n=1), wait("b", n=2), wait("c", n=2, m=3))
    (message,) = await publish(storage, {"n": 2})
    assert await delivered(storage) == [("i-1", "b", message)]
    assert await recorded(storage, "i-1") == [("b", RECEIVED)]
    assert await status(storage, "i-1") is RUNNING
    assert await waiting_again(storage, wait("a", n=1), wait("c", n=2, m=3)) == ()
    (other,) = await publish(storage, {"m": 3, "n": 2, "more": True})
    assert await delivered(storage) == [("i-1", "c", other)]


async def test_message_goes_to_the_earliest_wait_that_it_matches(storage: Storage) -> None:
    await waiting(storage, wait("z", n=1), wait("a", n=1), wait("m"))
    first, second, third = await publish(storage, {"n": 1}, {"n": 1}, {"n": 1})
    assert await delivered(storage) == [("i-1", "z", first)]
    assert await delivered(storage) == []  # it is running; one message wakes one wait
    assert await recorded(storage, "i-1") == [("z", RECEIVED)]
    assert await waiting_again(storage, wait("m"), wait("a", n=1)) == ("m", "a")  # in the order of the waits
    lease = await resumed(storage)
    for activity_id, message in (("a", second), ("m", third)):
        found = await storage.deliver_channel_message("i-1", ChannelMessage(0, "c", ""), lease=lease)
        assert found == ChannelDeliveryResult("i-1", "wf", activity_id, "c", message)
    assert await pending(storage, "i-1") == []


async def test_lowest_matching_message_is_delivered_first(storage: Storage) -> None:
    await waiting(storage, wait("a", n=1), wait("b", n=2))
    second, first = await publish(storage, {"n": 2}, {"n": 1})
    assert await delivered(storage) == [("i-1", "b", second)]
    assert await waiting_again(storage, wait("a", n=1)) == ("a",)
    assert await pending(storage, "i-1") == [first]


async def test_message_that_matches_no_wait_changes_nothing(storage: Storage) -> None:
    await waiting(storage, wait("a", n=1))
    before, start = await storage.get_instance("i-1"), await cursor(storage)
    ids = await publish(storage, {"n": 2}, {"m": 1}, [1], "1", None)
    assert await delivered(storage) == []
    for message in await storage.get_pending_channel_messages("c"):
        assert await storage.deliver_channel_message("i-1", message) is None
    assert await storage.get_instance("i-1") == before
    assert await storage.get_history_count("i-1") == 0
    assert await cursor(storage) == start
    assert await pending(storage, "i-1") == ids
    assert await storage.next_work_at() is None  # the sweep is done with the channel


async def test_unmatched_message_is_kept_for_a_later_wait(storage: Storage) -> None:
    await waiting(storage, wait("a", n=1))
    left, other, _ = await publish(storage, {"n": 2}, {"n": 3}, {"n": 1})
    assert [activity for _, activity, _ in await delivered(storage)] == ["a"]
    assert await waiting_again(storage, wait("b", n=2)) == ("b",)
    lease = await resumed(storage)
    found = await take(storage, lease, "b", n=2)
    assert found is not None
    assert found.message_id == left
    assert await pending(storage, "i-1") == [other]
    assert await storage.suspend(lease, [wait("c")]) == Suspension(False, ("c",))


async def test_later_wait_for_the_same_values_gets_the_next_message(storage: Storage) -> None:
    await waiting(storage, wait("a", n=1))
    left, first, second = await publish(storage, {"n": 9}, {"n": 1}, {"n": 1})
    assert await delivered(storage) == [("i-1", "a", first)]
    assert await waiting_again(storage, wait("b", n=1)) == ("b",)
    lease = await resumed(storage)
    found = await take(storage, lease, "b", n=1)
    assert found is not None
    assert found.message_id == second
    assert await take(storage, lease, "c", n=1) is None
    assert await storage.suspend(lease, [wait("c", n=1)]) == Suspension(True)
    assert await delivered(storage) == []
    assert await pending(storage, "i-1") == [left]
    (third,) = await publish(storage, {"n": 1})
    assert await delivered(storage) == [("i-1", "c", third)]


async def test_message_is_taken_once_even_if_it_matches_other_values(storage: Storage) -> None:
    await waiting(storage, wait("a", n=1))
    _, both = await publish(storage, {"n": 9}, {"n": 1, "m": 1})
    assert await delivered(storage) == [("i-1", "a", both)]
    lease = await resumed(storage)
    assert await take(storage, lease, "b", m=1) is None
    assert await storage.suspend(lease, [wait("b", m=1)]) == Suspension(True)
    assert await delivered(storage) == []
    (later,) = await publish(storage, {"m": 1})
    assert await delivered(storage) == [("i-1", "b", later)]


async def test_waits_for_any_message_and_for_values_can_be_mixed(storage: Storage) -> None:
    await waiting(storage, wait("n", n=1), wait("any"), wait("m", m=1))
    first, second, third = await publish(storage, {"m": 1}, {"n": 1}, {"n": 1})
    assert await delivered(storage) == [("i-1", "any", first)]  # registered before the one for `m`
    lease = await resumed(storage)
    assert await storage.suspend(lease, [wait("n", n=1), wait("m", m=1)]) == Suspension(False, ("n",))
    for activity_id, expected in (("n", second), ("rest", third)):
        found = await take(storage, lease, activity_id)
        assert found is not None
        assert found.message_id == expected
    assert await storage.suspend(lease, [wait("m", m=1), wait("late")]) == Suspension(True)
    (fourth,) = await publish(storage, {"m": 1})
    assert await delivered(storage) == [("i-1", "m", fourth)]


async def test_waits_for_any_message_get_one_message_each_in_order(storage: Storage) -> None:
    await waiting(storage, wait("b"), wait("a"))
    first, second = await publish(storage, 1, 2)
    assert await delivered(storage) == [("i-1", "b", first)]
    assert await waiting_again(storage, wait("a")) == ("a",)
    assert await pending(storage, "i-1") == [second]


async def test_every_instance_gets_the_messages_that_it_matches(storage: Storage) -> None:
    for n in range(5):
        await waiting(storage, wait("a", n=n), instance_id=f"i-{n}")
    await waiting(storage, wait("a"), instance_id="all")
    await waiting(storage, wait("a", n=3), instance_id="same")
    ids = await publish(storage, {"n": 3}, {"n": 1}, {"n": 7})
    found = sorted(await delivered(storage))
    assert found == [("all", "a", ids[0]), ("i-1", "a", ids[1]), ("i-3", "a", ids[0]), ("same", "a", ids[0])]
    assert await delivered(storage) == []


async def test_sweep_resumes_where_it_stopped(storage: Storage) -> None:
    for n in range(5):
        await waiting(storage, wait("a", n=n % 2), instance_id=f"i-{n}")
    await publish(storage, {"n": 0}, {"n": 1})
    pages = [[instance_id for instance_id, _, _ in await delivered(storage, 2)] for _ in range(4)]
    assert pages == [["i-0", "i-1"], ["i-2", "i-3"], ["i-4"], []]
    assert await storage.next_work_at() is not None  # they are running
    assert {await status(storage, f"i-{n}") for n in range(5)} == {RUNNING}


async def test_each_wait_times_out_at_its_own_time(storage: Storage, shift: Shift) -> None:
    waits = [
        wait("late", after=30, n=1),
        wait("never", n=2),
        wait("soon", after=10, n=3),
        wait("mid", after=20, n=1),
        wait("plain", after=40),
    ]
    await waiting(storage, *waits)
    for ends, (seconds, activity_id) in enumerate([(11, "soon"), (21, "mid"), (31, "late"), (41, "plain")], 1):
        assert await storage.find_expired_channel_subscriptions() == []
        assert not await storage.expire_channel_wait("i-1", "c")
        shift(storage, seconds)
        (found,) = await storage.find_expired_channel_subscriptions()
        assert (found.instance_id, found.channel, found.activity_id) == ("i-1", "c", activity_id)
        assert await storage.expire_channel_wait("i-1", "c")
        assert (await recorded(storage, "i-1"))[-1] == (activity_id, TIMED_OUT)
        assert await storage.get_history_count("i-1") == ends
        waits = [each for each in waits if each.activity_id != activity_id]
        assert await waiting_again(storage, *waits) == ()
    assert await storage.next_due_at() is None
    (message,) = await publish(storage, {"n": 2})
    assert await delivered(storage) == [("i-1", "never", message)]


async def test_expired_waits_time_out_one_by_one_earliest_first(storage: Storage, shift: Shift) -> None:
    waits = [wait("b", after=20, n=1), wait("a", after=10, n=1), wait("c", after=60)]
    await waiting(storage, *waits)
    shift(storage, 30)
    assert [each.activity_id for each in await storage.find_expired_channel_subscriptions()] == ["a", "b"]
    assert await storage.expire_channel_waits([("i-1", "c"), ("i-1", "c")]) == [True, False]  # it is running
    lease = await resumed(storage)
    assert await storage.suspend(lease, waits[::2]) == Suspension(False, ("b",))
    assert await storage.expire_channel_wait("i-1", "c", lease=lease)
    assert not await storage.expire_channel_wait("i-1", "c", lease=lease)
    assert await recorded(storage, "i-1") == [("a", TIMED_OUT), ("b", TIMED_OUT)]


async def test_delivery_keeps_the_timeouts_of_other_waits(storage: Storage, shift: Shift) -> None:
    waits = [wait("a", after=10, n=1), wait("b", after=20, n=2), wait("c", n=3)]
    await waiting(storage, *waits)
    due = await storage.next_due_at()
    await publish(storage, {"n": 3})
    assert len(await delivered(storage)) == 1
    shift(storage, 5)
    assert await waiting_again(storage, wait("a", after=10, n=1), wait("b", after=1, n=2)) == ()
    assert await storage.next_due_at() == due
    shift(storage, 11)
    assert await storage.expire_channel_wait("i-1", "c")
    assert (await recorded(storage, "i-1"))[-1] == ("a", TIMED_OUT)


async def test_repeated_wait_keeps_its_timeout_and_its_position(storage: Storage, shift: Shift) -> None:
    await waiting(storage, wait("b", n=1), wait("a", after=10, n=1), TimerWait("t", "t:1", after=sec(1)))
    shift(storage, 2)
    assert await storage.fire_timer("i-1", "t")
    assert await waiting_again(storage, wait("new", n=1), wait("a", after=90, n=1), wait("b", after=0, n=1)) == ()
    subscription = await storage.get_channel_subscription("i-1", "c")
    assert subscription is not None
    assert (subscription.activity_id, subscription.timeout_at) == ("b", None)  # it has no time, and keeps that
    (message,) = await publish(storage, {"n": 1})
    assert await delivered(storage) == [("i-1", "b", message)]
    assert await waiting_again(storage, wait("new", n=1), wait("a", after=90, n=1)) == ()
    shift(storage, 11)
    assert [each.activity_id for each in await storage.find_expired_channel_subscriptions()] == ["a"]


@pytest.mark.parametrize("again", [wait("a", after=50), wait("a", after=50, n=2), wait("a", "d", after=50)])
async def test_new_wait_of_an_activity_replaces_its_earlier_wait(
    storage: Storage, again: ChannelWait, shift: Shift
) -> None:
    lease = await subscribed(storage)
    await storage.subscribe_to_channel("i-1", "d", BROADCAST, lease=lease)
    waits: list[Wait] = [wait("a", after=10, n=1), wait("b", n=5), TimerWait("t", "t:1", after=sec(1))]
    assert await storage.suspend(lease, waits) == Suspension(True)
    shift(storage, 2)
    assert await storage.fire_timer("i-1", "t")
    assert await waiting_again(storage, again) == ()
    shift(storage, 20)
    assert await storage.find_expired_channel_subscriptions() == []
    assert [each.activity_id for each in await storage.get_channel_subscribers_waiting(again.channel)] == ["a"]
    (message,) = await publish(storage, {"n": 2}, channel=again.channel)
    assert await delivered(storage) == [("i-1", "a", message)]


async def test_wait_on_another_channel_replaces_the_earlier_wait(storage: Storage, shift: Shift) -> None:
    lease = await subscribed(storage)
    await storage.subscribe_to_channel("i-1", "d", BROADCAST, lease=lease)
    assert await storage.suspend(lease, [wait("a", after=10)]) == Suspension(True)
    shift(storage, 5)
    assert await waiting_again(storage, wait("a", "d", after=50)) == ()
    await publish(storage, 1)
    assert await delivered(storage) == []
    shift(storage, 20)
    assert await storage.find_expired_channel_subscriptions() == []
    (message,) = await publish(storage, 1, channel="d")
    assert await delivered(storage) == [("i-1", "a", message)]


async def test_suspend_returns_waits_that_are_ready(storage: Storage) -> None:
    lease = await subscribed(storage)
    await publish(storage, {"n": 1}, {"n": 2})
    asked = [wait("d", n=4), wait("b", n=2), wait("a", n=1), wait("over", after=0, n=5)]
    assert await storage.suspend(lease, asked) == Suspension(False, ("b", "a", "over"))
    assert await status(storage, "i-1") is RUNNING
    assert await storage.suspend(lease, [wait("d", n=4)]) == Suspension(True)


async def test_repeated_wait_sees_a_message_published_while_running(storage: Storage) -> None:
    await waiting(storage, wait("a", n=1), wait("b", n=2))
    await publish(storage, {"n": 2})
    assert len(await delivered(storage)) == 1
    (message,) = await publish(storage, {"n": 1})  # no sweep has seen it
    assert await waiting_again(storage, wait("a", n=1)) == ("a",)
    assert await delivered(storage) == []  # now one has, and it is running
    assert await waiting_again(storage, wait("a", n=1)) == ("a",)
    lease = await resumed(storage)
    found = await storage.deliver_channel_message("i-1", ChannelMessage(0, "c", ""), lease=lease)
    assert found is not None
    assert (found.activity_id, found.message_id) == ("a", message)


@pytest.mark.parametrize("where", [{}, {"n": 1}])
async def test_kept_wait_gets_a_message_published_while_it_was_inactive(
    storage: Storage, where: Where, shift: Shift
) -> None:
    for instance_id, channel in (("i-1", "d"), ("i-2", "d"), ("i-3", "c")):
        lease = await subscribed(storage, instance_id)
        if channel == "d":
            await storage.subscribe_to_channel(instance_id, "d", BROADCAST, lease=lease)
        waits: list[Wait] = [wait("a", "c", **where), TimerWait("t", "t:1", after=sec(1))]
        assert await storage.suspend(lease, waits) == Suspension(True)
    shift(storage, 2)
    assert await storage.fire_timers([("i-1", "t"), ("i-2", "t"), ("i-3", "t")]) == [True] * 3
    (message,) = await publish(storage, {"n": 1})
    assert await delivered(storage) == []  # they are running
    assert await storage.next_work_at() != await storage.next_due_at()  # they can be taken
    for instance_id in ("i-1", "i-2"):
        lease = await resumed(storage, instance_id)
        if instance_id == "i-1":
            found = await storage.register_channel_receive_and_release_lock(
                "i-1", "d", "w1", "b", after=sec(90), lease=lease
            )
            assert found == Suspension(True)
        else:
            await storage.update_instance_status("i-2", WAITING, lease=lease)
            await storage.release_lock("i-2", "w1", lease=lease)
        assert await delivered(storage) == [(instance_id, "a", message)]
    assert await delivered(storage) == []  # the third is running


async def test_leased_instance_gets_its_message_in_a_sweep_after_release(storage: Storage) -> None:
    await waiting(storage, wait("a", n=1))
    await waiting(storage, wait("a", n=2), instance_id="i-2")
    held = await storage.try_acquire_lock("i-1", "w2", 30)
    assert held is not None
    first, second = await publish(storage, {"n": 1}, {"n": 2})
    assert await delivered(storage) == [("i-2", "a", second)]
    assert await delivered(storage) == []
    await storage.release_lock("i-1", "w2", lease=held)
    assert await delivered(storage) == [("i-1", "a", first)]
    assert await delivered(storage) == []


async def test_lease_holder_takes_a_matching_message_without_a_sweep(storage: Storage) -> None:
    await waiting(storage, wait("a", n=1))
    (message,) = await publish(storage, {"n": 1})
    await storage.deliver_pending(channels=["elsewhere"])
    lease = await resumed(storage)
    found = await take(storage, lease, "a", n=1)
    assert found == ChannelDeliveryResult("i-1", "wf", "a", "c", message)
    assert await storage.suspend(lease, [wait("b", n=1)]) == Suspension(True)
    assert await delivered(storage) == []


async def test_delivery_finds_the_matching_wait_without_a_sweep(storage: Storage) -> None:
    await waiting(storage, wait("a", n=1), wait("b", n=2))
    left, first, second = await publish(storage, {"n": 3}, {"n": 2}, {"n": 1})
    found = await storage.deliver_channel_message("i-1", ChannelMessage(left, "c", ""))
    assert found == ChannelDeliveryResult("i-1", "wf", "b", "c", first)
    lease = await resumed(storage)
    (third,) = await publish(storage, {"n": 1})
    found = await storage.deliver_channel_message("i-1", ChannelMessage(third, "c", ""), lease=lease)
    assert found == ChannelDeliveryResult("i-1", "wf", "a", "c", second)


async def test_lease_holder_takes_messages_by_values(storage: Storage) -> None:
    lease = await subscribed(storage)
    left, first, second = await publish(storage, {"n": 9}, {"n": 1, "m": {"k": "x"}}, {"n": 1, "m": {"k": "y"}})
    found = await take(storage, lease, "a", **{"m.k": "y"})
    assert found == ChannelDeliveryResult("i-1", "wf", "a", "c", second)
    assert await take(storage, lease, "b", **{"m.k": "y"}) is None
    assert await take(storage, lease, "b", n=7) is None
    assert await storage.get_history_count("i-1") == 1
    found = await take(storage, lease, "b", n=1)
    assert found is not None
    assert found.message_id == first
    assert await pending(storage, "i-1") == [left]
    assert await status(storage, "i-1") is RUNNING
    again = await take(storage, lease, "b", n=9)  # a step that is recorded takes no message
    assert again == ChannelDeliveryResult("i-1", "wf", "b", "c", 0)
    assert await pending(storage, "i-1") == [left]
    assert await take(storage, lease, "x", "elsewhere", n=1) is None  # not subscribed
    with pytest.raises(LeaseLostError):
        await take(storage, Lease("i-1", "w9", lease.token, lease.expires_at), "c", n=9)
    offered = ChannelMessage(0, "c", "")
    with pytest.raises(LimitError):
        await storage.deliver_channel_message("i-1", offered, lease=lease, where={"n": 1})
    with pytest.raises(InvalidJSONPathError):
        await take(storage, lease, "c", "c", **{"a..b": 1})
    with pytest.raises(LimitError):
        await take(storage, lease, "c", n=object())


async def test_waiting_for_values_on_a_competing_channel_is_refused(storage: Storage) -> None:
    lease = await subscribed(storage, mode=COMPETING)
    ids = await publish(storage, {"n": 2}, {"n": 1})
    with pytest.raises(LimitError):
        await storage.suspend(lease, [wait("a", n=1)])
    with pytest.raises(LimitError):
        await take(storage, lease, "a", n=1)
    assert await remaining(storage) == ids
    assert await storage.get_history_count("i-1") == 0
    assert await status(storage, "i-1") is RUNNING


async def test_several_waits_share_a_competing_channel(storage: Storage) -> None:
    lease = await subscribed(storage, mode=COMPETING)
    assert await storage.suspend(lease, [wait("b"), wait("a")]) == Suspension(True)
    first, second = await publish(storage, 1, 2)
    assert await delivered(storage) == [("i-1", "b", first)]
    assert await waiting_again(storage, wait("a")) == ("a",)
    assert await remaining(storage) == [second]


async def test_a_direct_message_is_matched(storage: Storage) -> None:
    for instance_id in ("i-1", "i-2"):
        await publish(storage, {"n": 0}, channel=f"mail:{instance_id}")
        lease = await subscribed(storage, instance_id, "mail", DIRECT)
        asked: list[Wait] = [wait("a", f"mail:{instance_id}", n=1), wait("b", f"mail:{instance_id}", n=2)]
        assert await storage.suspend(lease, asked) == Suspension(True)
    (message,) = await publish(storage, {"n": 2}, channel="mail:i-2")
    assert await delivered(storage) == [("i-2", "b", message)]
    lease = await resumed(storage)
    assert await storage.suspend(lease, [wait("c", "mail:i-1", n=0)]) == Suspension(False, ("c",))


VALUES: list[object] = [
    0, 1, 1.5, -1, 10**20, "1", "", "a", "A", "a ", "é", "e\u0301", True, False, None,
    [], [1], [1, 2], [2, 1], ["1"], {}, {"a": 1}, {"a": 1, "b": [True, None]}, {"a": True}, [[1], {}], "\U0001f600",
]  # fmt: skip
SAME: list[tuple[Any, Any]] = [
    (1, 1.0),
    (0, -0.0),
    (1e20, 10**20),
    ([1, {"a": 2.0}], [1.0, {"a": 2}]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ((1, 2), [1, 2]),
]


async def test_values_are_compared_with_their_types(storage: Storage) -> None:
    lease = await subscribed(storage)
    ids = await publish(storage, *({"v": value, "at": n} for n, value in enumerate(VALUES)))
    for n, value in enumerate(VALUES):
        found = await take(storage, lease, f"v:{n}", v=value)
        assert found is not None, value
        assert found.message_id == ids[n], value
        assert await take(storage, lease, f"again:{n}", v=value) is None, value
    for n, (asked, value) in enumerate(SAME):
        (message,) = await publish(storage, {"v": value})
        found = await take(storage, lease, f"s:{n}", v=asked)
        assert found is not None, asked
        assert found.message_id == message


async def test_paths_select_keys_of_objects_only(storage: Storage) -> None:
    lease = await subscribed(storage)
    data = {"a": {"b": {"c": 1}, "x.y": 2, "0": 3, "": 4}, "list": [{"a": 5}], "Ä b": 6, "t": "text"}
    (message,) = await publish(storage, data)
    for path, value in [("a.b.c", 2), ("a.x.y", 2), ("list.0", {"a": 5}), ("list.0.a", 5), ("A.b.c", 1), ("t.0", "t")]:
        assert await take(storage, lease, "no", "c", **{path: value}) is None, path
    assert await take(storage, lease, "no", "c", **{"a.b.c": 1, "a.0": 3, "missing": None}) is None
    found = await take(
        storage, lease, "yes", "c", **{"a.b.c": 1, "a.0": 3, "Ä b": 6, "list": [{"a": 5}], "a.b": {"c": 1}}
    )
    assert found is not None
    assert found.message_id == message


async def test_message_that_is_not_an_object_matches_nothing(storage: Storage) -> None:
    await waiting(storage, wait("a", n=1))
    await publish(storage, None, 1, "n", [{"n": 1}], True, {"n": {"n": 1}})
    await storage.publish_to_channel("c", b'{"n": 1}', binary=True)
    await storage.publish_to_channel("c", b"\x00\xff", binary=True)
    await storage.publish_to_channel("c", b'{"n": %s1%s}' % (b"[" * 900, b"]" * 900))
    assert await delivered(storage) == []
    (message,) = await publish(storage, {"n": 1})
    assert await delivered(storage) == [("i-1", "a", message)]


async def test_new_subscription_starts_from_the_beginning(storage: Storage) -> None:
    lease = await subscribed(storage, channel="mail", mode=DIRECT)
    first, second = await publish(storage, {"n": 1}, {"n": 2}, channel="mail:i-1")
    found = await take(storage, lease, "a", "mail:i-1", n=2)
    assert found is not None
    await storage.unsubscribe_from_channel("i-1", "mail:i-1", lease=lease)
    await storage.subscribe_to_channel("i-1", "mail", DIRECT, lease=lease)
    assert await pending(storage, "i-1", "mail:i-1") == [first, second]
    found = await take(storage, lease, "b", "mail:i-1", n=2)
    assert found is not None
    assert found.message_id == second


async def test_cleanup_keeps_messages_that_a_subscriber_has_not_received(storage: Storage, shift: Shift) -> None:
    await waiting(storage, wait("a", n=1))
    ids = await publish(storage, {"n": 9}, {"n": 1}, {"n": 8})
    assert len(await delivered(storage)) == 1
    shift(storage, 100)
    assert await storage.cleanup_old_channel_messages(sec(10)) == 0
    assert await pending(storage, "i-1") == [ids[0], ids[2]]
    lease = await resumed(storage)
    assert (await take(storage, lease, "b")) is not None
    assert (await take(storage, lease, "c")) is not None
    shift(storage, 200)
    assert await storage.cleanup_old_channel_messages(sec(10)) == 3


async def test_waits_match_later_messages_after_a_forced_cleanup(storage: Storage, shift: Shift) -> None:
    await waiting(storage, wait("a", n=1))
    await publish(storage, {"n": 9})
    assert await delivered(storage) == []
    shift(storage, 100)
    assert await storage.cleanup_old_channel_messages(sec(10), force=True) == 1
    (message,) = await publish(storage, {"n": 1})
    assert await delivered(storage) == [("i-1", "a", message)]


async def test_channel_is_matched_after_its_cleanup_and_reuse(storage: Storage, shift: Shift) -> None:
    await waiting(storage, wait("a", n=1))
    await publish(storage, {"n": 1})
    assert len(await delivered(storage)) == 1
    await storage.unsubscribe_from_channel("i-1", "c")
    shift(storage, 100)
    assert await storage.cleanup_old_channel_messages(sec(10)) == 1
    await waiting(storage, wait("a", n=1), instance_id="i-2")
    (message,) = await publish(storage, {"n": 1})
    assert await delivered(storage) == [("i-2", "a", message)]


async def test_instance_can_have_1500_waits(storage: Storage, shift: Shift) -> None:
    lease = await subscribed(storage)
    waits: list[Wait] = [wait(f"a:{n}", after=1000 + 1000 * n, n=n) for n in range(1500)]
    assert await storage.suspend(lease, waits) == Suspension(True)
    first, second = await publish(storage, {"n": 1499}, {"n": 7})
    assert await delivered(storage) == [("i-1", "a:1499", first)]
    assert await waiting_again(storage, *waits[:1499]) == ("a:7",)
    lease = await resumed(storage)
    found = await storage.deliver_channel_message("i-1", ChannelMessage(0, "c", ""), lease=lease)
    assert found is not None
    assert (found.activity_id, found.message_id) == ("a:7", second)
    assert await storage.suspend(lease, [*waits[:7], *waits[8:1499]]) == Suspension(True)
    shift(storage, 2500)
    assert [each.activity_id for each in await storage.find_expired_channel_subscriptions()] == ["a:0", "a:1"]


async def test_match_is_found_among_thousands_of_messages(storage: Storage) -> None:
    """A set of paths that is not in use yet, and one whose keys exist for a later subscriber only."""
    early = await subscribed(storage, "early")
    ids = await publish_many(storage, [{"n": n, "m": -n} for n in range(2500)])
    late = await subscribed(storage, "late")
    assert await storage.suspend(late, [wait("a", n=2600)]) == Suspension(True)
    more = await publish_many(storage, [{"n": n, "m": -n} for n in range(2500, 2700)])
    assert await delivered(storage) == [("late", "a", more[100])]
    for n in (3, 2499, 2650, 0):  # before, at the end of, and after the messages that have keys for the other's wait
        found = await take(storage, early, f"n:{n}", n=n)
        assert found is not None
        assert found.message_id == (ids + more)[n]
    found = await take(storage, early, "m", m=-2400)
    assert found is not None
    assert found.message_id == ids[2400]
    assert await storage.suspend(early, [wait("b", m=-1001), wait("c", n=9999)]) == Suspension(False, ("b",))
    assert await storage.suspend(early, [wait("c", n=9999), wait("d", n=3)]) == Suspension(True)
    (last,) = await publish(storage, {"n": 9999})
    assert await delivered(storage) == [("early", "c", last)]


async def test_sweep_skips_thousands_of_unmatched_messages(storage: Storage) -> None:
    await waiting(storage, wait("a", n=-1), wait("b", m=-1))
    ids = await publish_many(storage, [{"n": n, "m": n} for n in range(2300)] + [{"n": -1, "m": 0}])
    found: list[tuple[str, str, int]] = []
    for _ in range(10):
        found += await delivered(storage)
    assert found == [("i-1", "a", ids[-1])]
    assert await waiting_again(storage, wait("b", m=-1)) == ()
    assert await storage.next_work_at() is None


async def test_dropped_wait_gets_no_message_and_no_timeout(storage: Storage, shift: Shift) -> None:
    await waiting(storage, wait("a", after=10, n=1), wait("b", n=2), wait("c", n=3))
    await publish(storage, {"n": 3})
    assert len(await delivered(storage)) == 1
    assert await waiting_again(storage, wait("b", n=2)) == ()
    assert [each.activity_id for each in await storage.get_channel_waits("i-1")] == ["b"]
    shift(storage, 11)
    assert await storage.find_expired_channel_subscriptions() == []
    ids = await publish(storage, {"n": 1})
    assert await delivered(storage) == []
    assert await pending(storage, "i-1") == ids
