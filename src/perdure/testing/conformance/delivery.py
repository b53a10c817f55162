"""Test how a backend delivers messages to instances that wait for them."""

import asyncio
import json
from datetime import datetime, timedelta

import pytest

from perdure.errors import LeaseLostError, LimitError
from perdure.model.records import (
    ChannelDeliveryResult,
    ChannelMessage,
    ChannelMode,
    ChannelWait,
    HistoryEvent,
    ResumableWorkflow,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.testing.conformance.channels import pending, publish, remaining, subscriber
from perdure.testing.conformance.tools import Shift, again, leased, listening, new, recorded, status

BROADCAST, COMPETING, DIRECT = ChannelMode.BROADCAST, ChannelMode.COMPETING, ChannelMode.DIRECT
RECEIVED = "ChannelMessageReceived"


async def message(storage: Storage, message_id: int, channel: str = "c") -> ChannelMessage:
    """Return a message by its id."""
    (found,) = await storage.get_pending_channel_messages(channel, message_id - 1, 1)
    return found


async def payload(storage: Storage, instance_id: str) -> dict[str, object]:
    """Return the payload of an instance's last event."""
    events, _ = await storage.get_history_paginated(instance_id)
    found: dict[str, object] = json.loads(events[-1].event_data or b"null")
    return found


async def delivered(storage: Storage, limit: int = 0) -> list[tuple[str, int]]:
    """Return what a sweep delivers: instances and messages."""
    return [(found.instance_id, found.message_id) for found in await storage.deliver_pending(limit)]


async def test_message_reaches_the_waiting_instance(storage: Storage) -> None:
    await listening(storage, "i-1")
    first = await storage.publish_to_channel("c", b'{"n": 1}', b'{"m": 2}')
    found = await storage.deliver_channel_message_with_lock("i-1", "c", await message(storage, first), "w9", 30)
    assert found == ChannelDeliveryResult("i-1", "wf", "r:1", "c", first)
    assert await recorded(storage, "i-1") == [("r:1", RECEIVED)]
    assert await status(storage, "i-1") is WorkflowStatus.RUNNING
    assert await storage.find_resumable_workflows() == [ResumableWorkflow("i-1", "wf")]
    subscription = await storage.get_channel_subscription("i-1", "c")
    assert subscription is not None
    assert (subscription.activity_id, subscription.timeout_at, subscription.cursor_message_id) == (None, None, first)
    assert await storage.deliver_channel_message("i-1", await message(storage, first)) is None


@pytest.mark.pitfall(49)
async def test_payload_has_the_keys_that_edda_and_romancy_read(storage: Storage) -> None:
    name = 'ä"\\ %s :x {y}'
    await listening(storage, "i-1", name)
    first = await storage.publish_to_channel(name, b'{"n":  1.50}', b'{"m":2}')
    published = (await message(storage, first, name)).published_at
    await storage.deliver_pending()
    found = await payload(storage, "i-1")
    assert (found["id"], found["channel"], found["channel_name"]) == (first, name, name)
    assert (found["data"], found["metadata"]) == ({"n": 1.5}, {"m": 2})
    assert found["published_at"] == found["created_at"]
    assert datetime.fromisoformat(str(found["published_at"])) == published
    events, _ = await storage.get_history_paginated("i-1")
    assert b'"data": {"n":  1.50}, "metadata": {"m":2}' in (events[0].event_data or b"")  # as published, not as parsed


@pytest.mark.pitfall(41)
@pytest.mark.parametrize("data", [b"null", b"[1, 2]", b'"text"', b"0", b"false", b'{"a": "\\u0000"}'])
async def test_json_is_delivered_unchanged(storage: Storage, data: bytes) -> None:
    await listening(storage, "i-1")
    await publish(storage, data)
    await storage.deliver_pending()
    assert (await payload(storage, "i-1"))["data"] == json.loads(data)
    assert (await payload(storage, "i-1"))["metadata"] == {}


@pytest.mark.pitfall(41)
async def test_bytes_are_delivered_as_bytes(storage: Storage) -> None:
    await listening(storage, "i-1")
    first = await storage.publish_to_channel("c", b"\x00\xff'", b'{"m": 2}', binary=True)
    await storage.deliver_pending()
    events, _ = await storage.get_history_paginated("i-1")
    assert (events[0].data_type, events[0].event_data_binary) == ("binary", b"\x00\xff'")
    found = await payload(storage, "i-1")
    assert (found["id"], found["data"], found["metadata"]) == (first, None, {"m": 2})


async def test_every_broadcast_subscriber_gets_every_message_once_in_order(storage: Storage) -> None:
    for n in range(3):
        await listening(storage, f"i-{n}")
    ids = await publish(storage, b"1", b"2")
    seen: dict[str, list[int]] = {f"i-{n}": [] for n in range(3)}
    for round_ in range(2, 5):
        for instance_id, found in await delivered(storage):
            seen[instance_id].append(found)
            lease = await storage.try_acquire_lock(instance_id, "w1", 30)
            assert lease is not None
            waited = await storage.suspend(lease, [ChannelWait("c", f"r:{round_}")])
            if not waited.suspended:
                taken = await storage.deliver_channel_message(
                    instance_id, await message(storage, ids[1]), lease=lease, activity_id=f"r:{round_}"
                )
                assert taken is not None
                seen[instance_id].append(taken.message_id)
    assert seen == {f"i-{n}": ids for n in range(3)}


@pytest.mark.pitfall(4)
async def test_competing_message_goes_to_one_instance(storage: Storage) -> None:
    for n in range(3):
        await listening(storage, f"i-{n}", mode=COMPETING)
    ids = await publish(storage, b"1", b"2")
    assert await delivered(storage) == [("i-0", ids[0]), ("i-1", ids[1])]
    assert await remaining(storage) == []
    assert await pending(storage, "i-2") == []
    assert await status(storage, "i-2") is WorkflowStatus.WAITING_FOR_MESSAGE
    assert await delivered(storage) == []


@pytest.mark.pitfall(4)
async def test_concurrent_deliverers_deliver_a_competing_message_once(storage: Storage, peer: Storage) -> None:
    for n in range(6):
        await listening(storage, f"i-{n}", mode=COMPETING)
    ids = await publish(storage, b"1", b"2")
    offered = await message(storage, ids[0])
    found = await asyncio.gather(
        *([storage, peer][n % 2].deliver_channel_message(f"i-{n % 6}", offered) for n in range(12))
    )
    assert sorted(result.message_id for result in found if result) == ids
    assert sum([await storage.get_history_count(f"i-{n}") for n in range(6)]) == 2
    assert await remaining(storage) == []


async def test_a_claimed_message_is_not_delivered(storage: Storage) -> None:
    await subscriber(storage, "other", mode=COMPETING)
    await listening(storage, "i-1", mode=COMPETING)
    ids = await publish(storage, b"1", b"2")
    assert await storage.claim_channel_message(ids[0], "other")
    assert await delivered(storage) == [("i-1", ids[1])]


@pytest.mark.pitfall(22)
async def test_a_direct_message_goes_to_its_instance(storage: Storage) -> None:
    for n in range(2):
        await listening(storage, f"i-{n}", "mail", DIRECT)
    await listening(storage, "i-2", "mail")
    (first,) = await publish(storage, b"1", channel="mail:i-1")
    assert await delivered(storage) == [("i-1", first)]


@pytest.mark.pitfall(16)
async def test_instance_that_does_not_wait_gets_no_message(storage: Storage) -> None:
    await subscriber(storage, "running")
    await new(storage, "stranger")
    for instance_id in ("finished", "cancelled", "elsewhere"):
        await listening(storage, instance_id, "c" if instance_id != "elsewhere" else "d")
    await storage.cancel_instance("cancelled", "")
    await storage.update_instance_status("finished", WorkflowStatus.FAILED)
    ids = await publish(storage, b"1")
    offered = await message(storage, ids[0])
    for instance_id in ("running", "stranger", "finished", "cancelled", "elsewhere", "nobody"):
        assert await storage.deliver_channel_message(instance_id, offered) is None
        assert await storage.deliver_channel_message_with_lock(instance_id, "c", offered, "w1", 30) is None
    assert await storage.get_history_count("running") == 0
    assert [await status(storage, i) for i in ("running", "finished", "cancelled", "elsewhere")] == [
        "running",
        "failed",
        "cancelled",
        "waiting_for_message",
    ]
    assert await pending(storage, "running") == ids


@pytest.mark.pitfall(16)
async def test_delivery_to_a_recorded_step_resumes_the_run_and_takes_no_message(storage: Storage) -> None:
    """As Romancy leaves it when it dies during a delivery."""
    for mode, channel in ((BROADCAST, "b"), (COMPETING, "c")):
        await listening(storage, channel, channel, mode)
        await storage.append_history(HistoryEvent(channel, "r:1", RECEIVED, b'{"id": 0}'))
        ids = await publish(storage, b"1", channel=channel)
        assert await delivered(storage) == [(channel, 0)]
        assert await pending(storage, channel, channel) == ids
        assert await status(storage, channel) is WorkflowStatus.RUNNING
        assert not await again(storage, channel, channel, activity_id="r:2")


@pytest.mark.pitfall(16)
async def test_delivery_is_atomic(storage: Storage) -> None:
    await listening(storage, "i-1", mode=COMPETING)
    ids = await publish(storage, b"1")
    await storage.begin_transaction()
    assert await storage.deliver_channel_message("i-1", await message(storage, ids[0])) is not None
    await storage.rollback_transaction()
    assert await remaining(storage) == ids
    assert await status(storage, "i-1") is WorkflowStatus.WAITING_FOR_MESSAGE
    assert await delivered(storage) == [("i-1", ids[0])]


async def test_leased_instance_gets_its_message_in_a_sweep_after_release(storage: Storage) -> None:
    await listening(storage, "i-1")
    held = await storage.try_acquire_lock("i-1", "w2", 30)
    assert held is not None
    ids = await publish(storage, b"1")
    assert await storage.deliver_channel_message("i-1", await message(storage, ids[0])) is None
    assert await delivered(storage) == []
    assert await delivered(storage) == []
    await storage.release_lock("i-1", "w2", lease=held)
    assert await delivered(storage) == [("i-1", ids[0])]


async def test_delivery_fences_off_an_expired_lease(storage: Storage, shift: Shift) -> None:
    await listening(storage, "i-1")
    held = await storage.try_acquire_lock("i-1", "w2", 10)
    await publish(storage, b"1")
    shift(storage, 11)
    assert len(await storage.deliver_pending()) == 1
    with pytest.raises(LeaseLostError):
        await storage.append_history(HistoryEvent("i-1", "late", "ActivityCompleted", b"1"), lease=held)


async def test_lease_holder_takes_messages_and_keeps_its_lease(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    await storage.subscribe_to_channel("i-1", "c", BROADCAST, lease=lease)
    ids = await publish(storage, b"1", b"2")
    offered = await message(storage, ids[1])
    assert await storage.deliver_channel_message("i-1", offered, lease=lease) is None  # the step is not named
    for n in range(2):
        found = await storage.deliver_channel_message("i-1", offered, lease=lease, activity_id=f"r:{n}")
        assert found == ChannelDeliveryResult("i-1", "wf", f"r:{n}", "c", ids[n])
    assert await storage.deliver_channel_message("i-1", offered, lease=lease, activity_id="r:2") is None
    await storage.append_history(HistoryEvent("i-1", "s", "ActivityCompleted", b"1"), lease=lease)
    await storage.complete_and_release(lease, b"1")
    with pytest.raises(LeaseLostError):
        await storage.deliver_channel_message("i-1", offered, lease=lease, activity_id="r:3")
    with pytest.raises(LimitError):
        await storage.deliver_channel_message("i-1", offered, activity_id="r:3")


@pytest.mark.pitfall(5)
async def test_sweep_delivers_undelivered_messages(storage: Storage) -> None:
    await listening(storage, "i-1")
    await listening(storage, "i-2", "d", COMPETING)
    (first,) = await publish(storage, b"1")
    (second,) = await publish(storage, b"1", channel="d")
    assert await delivered(storage) == [("i-1", first), ("i-2", second)]
    assert await delivered(storage) == []


async def test_sweep_resumes_where_it_stopped(storage: Storage) -> None:
    for n in range(5):
        await listening(storage, f"i-{n}")
    (first,) = await publish(storage, b"1")
    assert await delivered(storage, 2) == [("i-0", first), ("i-1", first)]
    assert await delivered(storage, 2) == [("i-2", first), ("i-3", first)]
    assert await delivered(storage, 2) == [("i-4", first)]
    with pytest.raises(LimitError):
        await delivered(storage, 1001)


@pytest.mark.parametrize("mode", [BROADCAST, COMPETING])
async def test_delivery_updates_the_time_of_the_instance(storage: Storage, shift: Shift, mode: ChannelMode) -> None:
    lease = await leased(storage, "i-1")
    assert (await storage.suspend(lease, [ChannelWait("c", "r:1", subscribe=mode)])).suspended
    await storage.publish_to_channel("c", b"1")
    shift(storage, 60)
    assert len(await storage.deliver_pending()) == 1
    row = await storage.get_instance("i-1")
    assert row is not None
    assert row.updated_at is not None
    assert row.started_at is not None
    assert row.updated_at - row.started_at > timedelta(seconds=30)


async def test_undeliverable_channel_does_not_block_other_channels(storage: Storage) -> None:
    for channel in ("a", "b"):
        await listening(storage, f"i-{channel}", channel)
    assert await storage.try_acquire_lock("i-a", "w2", 30) is not None
    await publish(storage, b"1", channel="a")
    (second,) = await publish(storage, b"1", channel="b")
    assert await delivered(storage, 1) == []
    sweeps = [await delivered(storage, 1) for _ in range(20)]  # channels marked at the same time may be seen again
    assert [found for found in sweeps if found] == [[("i-b", second)]]


async def test_sweep_of_named_channels_skips_other_channels(storage: Storage) -> None:
    for channel in ("a", "b"):
        await listening(storage, f"i-{channel}", channel)
        await publish(storage, b"1", channel=channel)
    assert [found.instance_id for found in await storage.deliver_pending(channels=["b", "unknown"])] == ["i-b"]
    assert [found.instance_id for found in await storage.deliver_pending()] == ["i-a"]
    assert await storage.deliver_pending(channels=[]) == []


async def test_waiting_subscribers_are_listed_in_the_order_of_their_waits(storage: Storage) -> None:
    await subscriber(storage, "running")
    for n in (2, 0, 1):
        await listening(storage, f"i-{n}", activity_id=f"r:{n}")
    await listening(storage, "elsewhere", "d")
    waiting = await storage.get_channel_subscribers_waiting("c")
    assert [(found.instance_id, found.activity_id) for found in waiting] == [
        ("i-2", "r:2"),
        ("i-0", "r:0"),
        ("i-1", "r:1"),
    ]
    assert len(await storage.get_channel_subscribers_waiting("c", limit=2)) == 2
    await storage.clear_channel_waiting_state("i-0", "c")
    assert [found.instance_id for found in await storage.get_channel_subscribers_waiting("c")] == ["i-2", "i-1"]


async def test_wait_times_out_once(storage: Storage, shift: Shift) -> None:
    await listening(storage, "i-1", after=timedelta(seconds=5))
    assert not await storage.expire_channel_wait("i-1", "c")
    shift(storage, 6)
    (found,) = await storage.find_expired_channel_subscriptions()
    assert (found.instance_id, found.channel, found.activity_id) == ("i-1", "c", "r:1")
    assert await storage.expire_channel_wait("i-1", "c")
    assert not await storage.expire_channel_wait("i-1", "c")
    assert await recorded(storage, "i-1") == [("r:1", "MessageTimeout")]
    event = await payload(storage, "i-1")
    assert (event["_error"], event["error_type"], event["channel"]) == (True, "TimeoutError", "c")
    assert event["error_message"] == 'timeout waiting for channel message on "c" (instance: i-1)'
    assert await storage.find_resumable_workflows() == [ResumableWorkflow("i-1", "wf")]
    await publish(storage, b"1")
    assert await delivered(storage) == []


async def test_many_waits_time_out_in_one_commit(storage: Storage, shift: Shift) -> None:
    for n in range(3):
        await listening(storage, f"i-{n}", after=timedelta(seconds=5))
    await listening(storage, "later", after=timedelta(seconds=60))
    shift(storage, 6)
    assert await storage.try_acquire_lock("i-1", "w2", 30) is not None
    waits = [("i-2", "c"), ("later", "c"), ("i-1", "c"), ("i-0", "c"), ("i-0", "d"), ("nobody", "c"), ("i-2", "c")]
    with pytest.raises(ZeroDivisionError):
        async with storage.transaction():
            assert sum(await storage.expire_channel_waits(waits)) == 2
            _ = 1 / 0
    assert await storage.get_history_count("i-0") == 0
    assert await storage.expire_channel_waits(waits) == [True, False, False, True, False, False, False]
    for instance_id in ("i-0", "i-2"):
        assert await recorded(storage, instance_id) == [("r:1", "MessageTimeout")]
        assert await status(storage, instance_id) is WorkflowStatus.RUNNING
    assert await storage.expire_channel_waits([]) == []
    for bad in ([("i-0", " c")], [("i-0", "c")] * 1001):
        with pytest.raises(LimitError):
            await storage.expire_channel_waits(bad)


async def test_expired_waits_are_listed_oldest_first(storage: Storage, shift: Shift) -> None:
    for n, seconds in enumerate([9, 5, 7, 20]):
        await listening(storage, f"i-{n}", after=timedelta(seconds=seconds))
    shift(storage, 10)
    expired = await storage.find_expired_channel_subscriptions()
    assert [found.instance_id for found in expired] == ["i-1", "i-2", "i-0"]
    assert len(await storage.find_expired_channel_subscriptions(2)) == 2


@pytest.mark.pitfall(10)
async def test_timeout_that_is_already_recorded_resumes_the_run(storage: Storage, shift: Shift) -> None:
    await listening(storage, "i-1", after=timedelta(seconds=5))
    await storage.append_history(HistoryEvent("i-1", "r:1", "MessageTimeout", b'{"_error": true}'))
    shift(storage, 6)
    assert await storage.expire_channel_wait("i-1", "c")
    assert await storage.get_history_count("i-1") == 1
    assert await status(storage, "i-1") is WorkflowStatus.RUNNING


async def test_lease_holder_expires_its_own_wait(storage: Storage, shift: Shift) -> None:
    await listening(storage, "i-1", after=timedelta(seconds=5))
    shift(storage, 6)
    lease = await storage.try_acquire_lock("i-1", "w1", 30)
    assert lease is not None
    assert not await storage.expire_channel_wait("i-1", "c")  # it is leased
    assert await storage.expire_channel_wait("i-1", "c", lease=lease)
    assert not await storage.expire_channel_wait("i-1", "c", lease=lease)
    await storage.append_history(HistoryEvent("i-1", "s", "ActivityCompleted", b"1"), lease=lease)


async def test_message_of_another_channel_is_refused(storage: Storage) -> None:
    await listening(storage, "i-1")
    ids = await publish(storage, b"1")
    with pytest.raises(LimitError):
        await storage.deliver_channel_message_with_lock("i-1", "d", await message(storage, ids[0]), "w1", 30)
    with pytest.raises(LimitError):
        await storage.deliver_channel_message_with_lock("i-1", "c", await message(storage, ids[0]), "w1", 0)
    assert await delivered(storage) == [("i-1", ids[0])]


@pytest.mark.pitfall(18)
async def test_post_commit_callback_can_deliver(storage: Storage) -> None:
    await listening(storage, "i-1")
    seen: list[ChannelDeliveryResult] = []

    async def deliver() -> None:
        seen.extend(await storage.deliver_pending())

    async with storage.transaction():
        published = await storage.publish_to_channel("c", b"1")
        storage.register_post_commit_callback(deliver)
        assert seen == []
    assert [(found.instance_id, found.message_id) for found in seen] == [("i-1", published)]


@pytest.mark.parametrize("mode", [BROADCAST, COMPETING])
async def test_channel_whose_subscriber_waits_for_the_next_message_is_not_due(
    storage: Storage, mode: ChannelMode
) -> None:
    await listening(storage, "i-1", mode=mode)
    if mode is COMPETING:
        await listening(storage, "i-2", mode=mode)
    await publish(storage, b"1")
    if mode is BROADCAST:
        await listening(storage, "i-2", mode=mode)  # from the next message on
    ((receiver, _),) = await delivered(storage)
    assert await storage.try_acquire_lock(receiver, "w1", 60) is not None
    due = await storage.next_work_at()
    assert due is not None
    assert due > await storage.now() + timedelta(seconds=30)  # the end of the lease


async def test_delivery_to_the_holder_of_a_lease_keeps_the_lease(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    await storage.subscribe_to_channel("i-1", "c", BROADCAST, lease=lease)
    await publish(storage, b"1")
    before = await storage.get_instance("i-1")
    offered = ChannelMessage(0, "c", "")
    assert await storage.deliver_channel_message("i-1", offered, lease=lease, activity_id="r:1") is not None
    after = await storage.get_instance("i-1")
    assert before is not None
    assert after is not None
    assert (after.locked_by, after.lock_token, after.locked_at) == ("w1", lease.token, before.locked_at)
    assert after.locked_at is not None
    assert after.lock_expires_at == lease.expires_at
