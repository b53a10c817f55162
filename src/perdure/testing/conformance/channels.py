"""Test how a backend handles messages and subscriptions."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.errors import (
    ChannelModeConflictError,
    InstanceNotFoundError,
    LeaseLostError,
    LimitError,
    NotSubscribedError,
)
from perdure.model.records import ChannelMessage, ChannelMode, Lease, OutgoingMessage, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.channels import direct_channel
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, leased, listening, new, recorded

BROADCAST, COMPETING, DIRECT = ChannelMode.BROADCAST, ChannelMode.COMPETING, ChannelMode.DIRECT
DAY = timedelta(days=1)


async def subscriber(storage: Storage, instance_id: str, channel: str = "c", mode: ChannelMode = BROADCAST) -> None:
    """Create an instance that is subscribed."""
    await new(storage, instance_id)
    await storage.subscribe_to_channel(instance_id, channel, mode)


async def publish(storage: Storage, *data: bytes, channel: str = "c") -> list[int]:
    """Publish messages one by one; return their ids."""
    return [await storage.publish_to_channel(channel, each) for each in data]


async def pending(storage: Storage, instance_id: str, channel: str = "c") -> list[int]:
    """Return the ids of the messages that a subscriber has not received."""
    return [message.id for message in await storage.get_pending_channel_messages_for_instance(instance_id, channel)]


async def remaining(storage: Storage, channel: str = "c") -> list[int]:
    """Return the ids of the messages in a channel."""
    return [message.id for message in await storage.get_pending_channel_messages(channel)]


async def test_message_is_read_back_byte_for_byte(storage: Storage) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    data, metadata = ' {"a":  "\\u00e4ä\\\\ %s \'", "n": 1.0}'.encode(), b'{ "trace":"x" }'
    first = await storage.publish_to_channel("c", data, metadata)
    second = await storage.publish_to_channel("c", b"\x00\xff'\\\n", binary=True)
    messages = await storage.get_pending_channel_messages("c")
    assert [message.id for message in messages] == [first, second]
    assert second > first
    assert [(m.data_type, m.data, m.data_binary, m.metadata) for m in messages] == [
        ("json", data, None, metadata),
        ("binary", None, b"\x00\xff'\\\n", None),
    ]
    assert len({message.message_id for message in messages}) == 2
    assert all(message.published_at is not None and message.published_at > before for message in messages)


@pytest.mark.parametrize("value", [b"", b"{", b"NaN", b"[Infinity]", b"\xff", b'"\x01"', b"[" * 100_000, b"1" * 5000])
async def test_message_that_is_not_json_is_refused(storage: Storage, value: bytes) -> None:
    with pytest.raises(LimitError):
        await storage.publish_to_channel("c", value)
    with pytest.raises(LimitError):
        await storage.publish_to_channel("c", b"1", value)
    assert await remaining(storage) == []


async def test_message_sizes_and_names_have_limits(storage: Storage) -> None:
    large = b'"' + b"x" * (8 * 1024 * 1024 - 2) + b'"'
    await storage.publish_to_channel(
        "c" * 255, large, b'"' + b"x" * 65534 + b'"', message_id="m" * 255, source="s" * 255
    )
    await storage.publish_to_channel("c" * 255, large, binary=True)
    for arguments in (
        ("c" * 256, b"1"),
        ("", b"1"),
        (" c", b"1"),
        ("c\n", b"1"),
        ("c", large + b" "),
        ("c", b"1", b'"' + b"x" * 65535 + b'"'),
    ):
        with pytest.raises(LimitError):
            await storage.publish_to_channel(*arguments)
    with pytest.raises(LimitError):
        await storage.publish_to_channel("c", large + b" ", binary=True)
    with pytest.raises(LimitError):
        await storage.publish_to_channel("c", "1", binary=True)  # type: ignore[arg-type]
    with pytest.raises(LimitError):
        await storage.publish_to_channel("c", b"1", message_id="m" * 256)
    with pytest.raises(LimitError):
        await storage.publish_to_channel("c", b"1", message_id="m", source="s" * 256)
    first, second = await storage.get_pending_channel_messages("c" * 255)
    assert first.data == large == second.data_binary


async def test_channel_names_are_compared_exactly(storage: Storage) -> None:
    for channel in ("Pay:1", "pay:1", "påy:1", "pay:1\u00a0x"):
        await storage.publish_to_channel(channel, b"1")
        assert len(await storage.get_pending_channel_messages(channel)) == 1


async def test_publishing_the_same_id_again_stores_nothing(storage: Storage) -> None:
    first = await storage.publish_to_channel("c", b"1", message_id="m-1")
    assert await storage.publish_to_channel("c", b"2", message_id="m-1") == first
    assert await storage.publish_to_channel("other", b"2", message_id="m-1") == first
    sources = [
        await storage.publish_to_channel("c", b"3", message_id="m-1", source=source) for source in ("a", "b", "a")
    ]
    assert len({first, *sources}) == 3
    assert sources[0] == sources[2]
    messages = await storage.get_pending_channel_messages("c")
    assert [message.data for message in messages] == [b"1", b"3", b"3"]
    assert messages[0].message_id == "m-1"
    assert await remaining(storage, "other") == []


async def test_message_id_is_known_for_the_retention_time_after_deletion(storage: Storage, shift: Shift) -> None:
    first = await storage.publish_to_channel("c", b"1", message_id="m-1", source="s")
    await storage.delete_channel_message(first)
    assert await storage.publish_to_channel("c", b"1", message_id="m-1", source="s") == first
    shift(storage, 3600)
    await storage.cleanup_old_channel_messages(DAY)
    assert await storage.publish_to_channel("c", b"1", message_id="m-1", source="s") == first
    assert await remaining(storage) == []
    shift(storage, 2 * 86400)
    await storage.cleanup_old_channel_messages(DAY)
    assert await storage.publish_to_channel("c", b"1", message_id="m-1", source="s") > first


async def test_message_id_can_be_known_longer_than_its_message_is_kept(storage: Storage, shift: Shift) -> None:
    async def publish_again() -> int:
        return await storage.publish_to_channel("c", b"1", message_id="m-1", source="s")

    first = await publish_again()
    shift(storage, 6 * 86400)
    assert await storage.cleanup_old_channel_messages(DAY, ids_older_than=7 * DAY) == 1
    assert await publish_again() == first
    assert await remaining(storage) == []
    shift(storage, 8 * 86400)
    assert await storage.cleanup_old_channel_messages(DAY, ids_older_than=7 * DAY) == 0
    again = await publish_again()
    assert again > first
    assert await remaining(storage) == [again]


async def test_forgotten_id_of_a_kept_message_is_known(storage: Storage, shift: Shift) -> None:
    """The message itself has the id, so that it is not stored twice."""
    first = await storage.publish_to_channel("c", b"1", message_id="m-1")
    shift(storage, 2 * 86400)
    assert await storage.cleanup_old_channel_messages(7 * DAY, ids_older_than=DAY) == 0
    assert await storage.publish_to_channel("c", b"1", message_id="m-1") == first
    assert await remaining(storage) == [first]


@pytest.mark.parametrize("wrong", [timedelta(seconds=-1), timedelta.max, 7])
async def test_invalid_age_of_message_ids_is_refused_before_anything_is_deleted(
    storage: Storage, shift: Shift, wrong: Any
) -> None:
    await old(storage, shift, b"1")
    with pytest.raises(LimitError, match="ids_older_than"):
        await storage.cleanup_old_channel_messages(DAY, ids_older_than=wrong)
    assert len(await remaining(storage)) == 1


async def test_concurrent_publishers_of_one_id_store_it_once(storage: Storage, peer: Storage) -> None:
    found = await asyncio.gather(
        *(
            [storage, peer][n % 2].publish_to_channel(f"c-{n % 3}", b"1", message_id="m-1", source="s")
            for n in range(12)
        )
    )
    assert len(set(found)) == 1
    assert sum([len(await remaining(storage, f"c-{n}")) for n in range(3)]) == 1


async def test_a_publisher_is_fenced(storage: Storage, shift: Shift) -> None:
    lease = await leased(storage, "i-1", timeout_sec=10)
    await storage.publish_to_channel("c", b"1", lease=lease)
    shift(storage, 20)
    assert await storage.try_acquire_lock("i-1", "w2", 10) is not None
    with pytest.raises(LeaseLostError):
        await storage.publish_to_channel("c", b"2", lease=lease)
    with pytest.raises(LeaseLostError):
        await storage.publish_to_channel("c", b"2", message_id="m-1", lease=lease)
    assert [type(found) for found in await storage.publish_messages([OutgoingMessage("c", b"3")], lease=lease)] == [
        LeaseLostError
    ]
    assert len(await remaining(storage)) == 1


async def test_many_messages_are_published_in_one_commit(storage: Storage) -> None:
    found = await storage.publish_messages(
        [
            OutgoingMessage("b", b"1"),
            OutgoingMessage("a", b"nonsense"),
            OutgoingMessage("a", b"2", b"{}", "m-1", "s"),
            OutgoingMessage("a", b"3", message_id="m-1", source="s"),
            OutgoingMessage("b", b"\xff", binary=True),
            OutgoingMessage("", b"1"),
        ]
    )
    assert [isinstance(answer, int) for answer in found] == [True, False, True, True, True, False]
    assert found[2] == found[3]
    assert await remaining(storage, "b") == [found[0], found[4]]
    assert await storage.publish_messages([]) == []


async def test_messages_are_listed_after_an_id(storage: Storage) -> None:
    ids = await publish(storage, b"1", b"2", b"3")
    assert [m.id for m in await storage.get_pending_channel_messages("c", ids[0], 1)] == [ids[1]]
    assert [m.id for m in await storage.get_pending_channel_messages("c", ids[2])] == []
    with pytest.raises(LimitError):
        await storage.get_pending_channel_messages("c", 0, 1001)


async def test_broadcast_subscriber_gets_only_later_messages(storage: Storage) -> None:
    (old,) = await publish(storage, b"1")
    await subscriber(storage, "i-1")
    assert await pending(storage, "i-1") == []
    ids = await publish(storage, b"2", b"3")
    assert await pending(storage, "i-1") == ids
    assert [m.id for m in await storage.get_pending_channel_messages_for_instance("i-1", "c", limit=1)] == ids[:1]
    subscription = await storage.get_channel_subscription("i-1", "c")
    assert subscription is not None
    assert (subscription.mode, subscription.cursor_message_id, subscription.activity_id) == (BROADCAST, old, None)
    assert await storage.get_delivery_cursor("i-1", "c") == old


async def test_competing_subscribers_share_the_backlog(storage: Storage) -> None:
    ids = await publish(storage, b"1", b"2")
    for instance_id in ("i-1", "i-2"):
        await subscriber(storage, instance_id, mode=COMPETING)
    assert await storage.claim_channel_message(ids[0], "i-1")
    assert [await pending(storage, instance_id) for instance_id in ("i-1", "i-2")] == [ids[1:], ids[1:]]


@pytest.mark.pitfall(22)
async def test_direct_message_reaches_its_instance_even_if_sent_before(storage: Storage) -> None:
    for instance_id in ("i-1", "i-2"):
        await new(storage, instance_id)
    (first,) = await publish(storage, b"1", channel="orders:i-1")
    names = [await storage.subscribe_to_channel(i, "orders", DIRECT) for i in ("i-1", "i-2", "i-1")]
    assert names == ["orders:i-1", "orders:i-2", "orders:i-1"]
    (second,) = await publish(storage, b"2", channel=direct_channel("orders", "i-1"))
    await storage.subscribe_to_channel("i-2", "orders", BROADCAST)
    assert await pending(storage, "i-1", "orders:i-1") == [first, second]
    assert await pending(storage, "i-2", "orders:i-2") == []
    assert await pending(storage, "i-2", "orders") == []
    with pytest.raises(NotSubscribedError):
        await pending(storage, "i-1", "orders")


async def test_full_name_of_a_direct_channel_is_limited(storage: Storage) -> None:
    await new(storage, "i" * 200)
    assert len(await storage.subscribe_to_channel("i" * 200, "c" * 54, DIRECT)) == 255
    with pytest.raises(LimitError):
        await storage.subscribe_to_channel("i" * 200, "c" * 55, DIRECT)


async def test_subscribing_again_changes_nothing(storage: Storage) -> None:
    await subscriber(storage, "i-1")
    ids = await publish(storage, b"1", b"2")
    await storage.update_delivery_cursor("i-1", "c", ids[0])
    await storage.subscribe_to_channel("i-1", "c", BROADCAST)
    assert await pending(storage, "i-1") == ids[1:]


async def test_live_subscribers_of_a_channel_have_one_mode(storage: Storage) -> None:
    await subscriber(storage, "i-1")
    await new(storage, "i-2")
    assert await storage.get_channel_mode("c") is BROADCAST
    for instance_id in ("i-1", "i-2"):
        with pytest.raises(ChannelModeConflictError):
            await storage.subscribe_to_channel(instance_id, "c", COMPETING)
    assert await storage.get_channel_subscription("i-2", "c") is None
    assert await storage.get_channel_mode("elsewhere") is None


@pytest.mark.pitfall(44)
async def test_finished_instances_do_not_decide_the_channel_mode(storage: Storage) -> None:
    await subscriber(storage, "i-1")
    await new(storage, "i-2")
    await storage.update_instance_output("i-1", b"1")
    assert await storage.get_channel_mode("c") is None
    await storage.subscribe_to_channel("i-2", "c", COMPETING)
    assert await storage.get_channel_mode("c") is COMPETING


@pytest.mark.pitfall(38)
async def test_concurrent_subscribers_succeed_or_get_a_mode_conflict(storage: Storage, peer: Storage) -> None:
    await new(storage, "i-1")
    await new(storage, "i-2")
    calls = [
        [storage, peer][n % 2].subscribe_to_channel("i-1" if n < 6 else "i-2", "c", BROADCAST if n < 9 else COMPETING)
        for n in range(12)
    ]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in found} <= {str, ChannelModeConflictError}
    modes = [await storage.get_channel_subscription(instance_id, "c") for instance_id in ("i-1", "i-2")]
    assert len({subscription.mode for subscription in modes if subscription}) == 1


async def test_subscribing_is_fenced_and_needs_an_instance(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    stale = Lease("i-1", "w1", lease.token + 1, lease.expires_at)
    with pytest.raises(LeaseLostError):
        await storage.subscribe_to_channel("i-1", "c", BROADCAST, lease=stale)
    assert await storage.get_channel_subscription("i-1", "c") is None
    await storage.subscribe_to_channel("i-1", "c", BROADCAST, lease=lease)
    for call in (
        storage.unsubscribe_from_channel("i-1", "c", lease=stale),
        storage.clear_channel_waiting_state("i-1", "c", lease=stale),
        storage.update_delivery_cursor("i-1", "c", 1, lease=stale),
        storage.claim_channel_message(1, "i-1", lease=stale),
        storage.delete_channel_message(1, lease=stale),
    ):
        with pytest.raises(LeaseLostError):
            await call
    with pytest.raises(InstanceNotFoundError):
        await storage.subscribe_to_channel("nobody", "c", BROADCAST)
    with pytest.raises(InstanceNotFoundError):
        await storage.claim_channel_message(1, "nobody")


async def test_unsubscribing_forgets_the_cursors(storage: Storage) -> None:
    await subscriber(storage, "i-1", "c:i-1")
    ids = await publish(storage, b"1", channel="c:i-1")
    await storage.update_delivery_cursor("i-1", "c:i-1", ids[0])
    for _ in range(2):
        await storage.unsubscribe_from_channel("i-1", "c:i-1")
    assert await storage.get_channel_subscription("i-1", "c:i-1") is None
    assert await storage.get_delivery_cursor("i-1", "c:i-1") == 0
    with pytest.raises(NotSubscribedError):
        await storage.update_delivery_cursor("i-1", "c:i-1", ids[0])
    await storage.subscribe_to_channel("i-1", "c", DIRECT)
    assert await pending(storage, "i-1", "c:i-1") == ids


async def test_a_cursor_never_goes_back(storage: Storage) -> None:
    await subscriber(storage, "i-1")
    ids = await publish(storage, b"1", b"2", b"3")
    await storage.update_delivery_cursor("i-1", "c", ids[1])
    await storage.update_delivery_cursor("i-1", "c", ids[0])
    assert await storage.get_delivery_cursor("i-1", "c") == ids[1]
    assert await pending(storage, "i-1") == ids[2:]


@pytest.mark.pitfall(4)
async def test_only_one_instance_claims_a_message(storage: Storage) -> None:
    for instance_id in ("i-1", "i-2"):
        await subscriber(storage, instance_id, mode=COMPETING)
    (message,) = await publish(storage, b"1")
    assert [await storage.claim_channel_message(message, i) for i in ("i-1", "i-1", "i-2")] == [True, False, False]
    assert await pending(storage, "i-2") == []
    await storage.delete_channel_message(message)
    await storage.delete_channel_message(message)
    assert not await storage.claim_channel_message(message, "i-2")


@pytest.mark.pitfall(38)
async def test_lost_claim_returns_false(storage: Storage, peer: Storage) -> None:
    (message,) = await publish(storage, b"1")
    for n in range(8):
        await new(storage, f"i-{n}")
    found = await asyncio.gather(*([storage, peer][n % 2].claim_channel_message(message, f"i-{n}") for n in range(8)))
    assert sorted(found) == [False] * 7 + [True]


@pytest.mark.pitfall(21)
async def test_rolled_back_message_was_never_published(storage: Storage) -> None:
    await listening(storage, "i-1")
    await storage.begin_transaction()
    await publish(storage, b"1")
    assert len(await storage.deliver_pending()) == 1
    await storage.rollback_transaction()
    assert (await remaining(storage), await recorded(storage, "i-1")) == ([], [])
    async with storage.transaction():
        await publish(storage, b"2")
    assert len(await storage.deliver_pending()) == 1
    assert await pending(storage, "i-1") == []


async def old(storage: Storage, shift: Shift, *data: bytes) -> list[int]:
    """Publish messages, and move the clock so that they are two days old."""
    ids = await publish(storage, *data)
    shift(storage, 2 * 86400)
    return ids


async def test_cleanup_deletes_old_messages_without_readers(storage: Storage, shift: Shift) -> None:
    ids = await old(storage, shift, b"1", b"2", b"3")
    fresh = await publish(storage, b"4")
    assert await storage.cleanup_old_channel_messages(DAY, limit=2) == 2
    assert await remaining(storage) == [ids[2], *fresh]
    assert await storage.cleanup_old_channel_messages(DAY) == 1
    assert await storage.cleanup_old_channel_messages(DAY) == 0
    assert await remaining(storage) == fresh


async def test_cleanup_deletes_the_oldest_messages_first(storage: Storage, shift: Shift) -> None:
    """The age counts and not the id: the clocks of two publishers differ."""
    shift(storage, 3600)
    newer = await publish(storage, b"1")
    shift(storage, 0)
    await publish(storage, b"2")
    shift(storage, 2 * 86400)
    async with storage.transaction():  # where a database chooses its plans freely
        assert await storage.cleanup_old_channel_messages(DAY, limit=1) == 1
    assert await remaining(storage) == newer


@pytest.mark.pitfall(54)
async def test_cleanup_keeps_messages_for_live_subscribers(storage: Storage, shift: Shift) -> None:
    for instance_id in ("fast", "slow", "dead"):
        await subscriber(storage, instance_id)
    ids = await old(storage, shift, b"1", b"2", b"3")
    await storage.update_delivery_cursor("fast", "c", ids[2])
    await storage.update_delivery_cursor("slow", "c", ids[0])
    await storage.cancel_instance("dead", "")
    assert await storage.cleanup_old_channel_messages(DAY) == 1
    assert await pending(storage, "slow") == ids[1:]
    assert await storage.cleanup_old_channel_messages(DAY, force=True) == 2


@pytest.mark.pitfall(54)
async def test_cleanup_keeps_direct_messages_of_a_live_instance(storage: Storage, shift: Shift) -> None:
    """Before it has ever subscribed; ids and channels may contain colons themselves."""
    await storage.create_instance(WorkflowInstance("to:i-1", "wf"))
    for channel in ("a:b:to:i-1", "a:b", "a:nobody", "plain"):
        await storage.publish_to_channel(channel, b"1")
    shift(storage, 2 * 86400)
    assert await storage.cleanup_old_channel_messages(DAY) == 3
    assert len(await remaining(storage, "a:b:to:i-1")) == 1
    await storage.cancel_instance("to:i-1")
    assert await storage.cleanup_old_channel_messages(DAY) == 1


@pytest.mark.pitfall(54)
async def test_cleanup_keeps_a_competing_backlog_with_live_subscribers(storage: Storage, shift: Shift) -> None:
    await subscriber(storage, "i-1", mode=COMPETING)
    ids = await old(storage, shift, b"1", b"2")
    await storage.claim_channel_message(ids[0], "i-1")
    assert await storage.cleanup_old_channel_messages(DAY) == 1
    assert await remaining(storage) == ids[1:]
    await storage.update_instance_status("i-1", WorkflowStatus.FAILED)
    assert await storage.cleanup_old_channel_messages(DAY) == 1


async def test_needed_messages_do_not_stop_the_cleanup_of_others(storage: Storage, shift: Shift) -> None:
    await subscriber(storage, "i-1", "needed")
    await publish(storage, *[b"1"] * 5, channel="needed")
    await old(storage, shift, b"1")
    assert await storage.cleanup_old_channel_messages(DAY, limit=2) == 1
    assert await remaining(storage) == []


@pytest.mark.pitfall(12)
async def test_cleanup_keeps_recent_claims(storage: Storage) -> None:
    await subscriber(storage, "i-1", mode=COMPETING)
    (message,) = await publish(storage, b"1")
    assert await storage.claim_channel_message(message, "i-1")
    await storage.cleanup_old_channel_messages(DAY)
    assert await pending(storage, "i-1") == []
    assert not await storage.claim_channel_message(message, "i-1")


@pytest.mark.parametrize("wrong", ["", "c ", " c", "c\x00", "c" * 256])
async def test_invalid_names_are_refused_by_every_operation(storage: Storage, wrong: str) -> None:
    """MySQL finds `c` when asked for `c `."""
    await listening(storage, "c", "c")
    await publish(storage, b"1")
    (message,) = await storage.get_pending_channel_messages("c")
    other = ChannelMessage(message.id, wrong, message.message_id)
    for call in (
        storage.publish_to_channel(wrong, b"1"),
        storage.publish_to_channel("c", b"1", message_id=wrong),
        storage.subscribe_to_channel("c", wrong, BROADCAST),
        storage.subscribe_to_channel(wrong, "c", BROADCAST),
        storage.unsubscribe_from_channel("c", wrong),
        storage.unsubscribe_from_channel(wrong, "c"),
        storage.get_channel_subscription("c", wrong),
        storage.get_channel_mode(wrong),
        storage.clear_channel_waiting_state("c", wrong),
        storage.get_pending_channel_messages(wrong),
        storage.get_pending_channel_messages_for_instance(wrong, "c"),
        storage.claim_channel_message(message.id, wrong),
        storage.update_delivery_cursor("c", wrong, message.id),
        storage.get_delivery_cursor(wrong, "c"),
        storage.get_channel_subscribers_waiting(wrong),
        storage.deliver_channel_message("c", other),
        storage.deliver_channel_message(wrong, message),
        storage.deliver_pending(channels=[wrong]),
        storage.expire_channel_wait("c", wrong),
        storage.fire_timer(wrong, "t"),
        storage.remove_timer_subscription("c", wrong),
        storage.register_channel_receive_and_release_lock(wrong, "c", "w1", "r:1"),
    ):
        with pytest.raises(LimitError):
            await call
    assert await pending(storage, "c") == [message.id]


async def test_a_lease_covers_its_own_instance_only(storage: Storage) -> None:
    await new(storage, "i-1")
    await storage.subscribe_to_channel("i-1", "c", BROADCAST)
    await publish(storage, b"1")
    (message,) = await storage.get_pending_channel_messages("c")
    lease = await leased(storage, "i-2")
    for call in (
        storage.subscribe_to_channel("i-1", "d", BROADCAST, lease=lease),
        storage.unsubscribe_from_channel("i-1", "c", lease=lease),
        storage.update_delivery_cursor("i-1", "c", message.id, lease=lease),
        storage.claim_channel_message(message.id, "i-1", lease=lease),
        storage.deliver_channel_message("i-1", message, lease=lease, activity_id="r:1"),
        storage.expire_channel_wait("i-1", "c", lease=lease),
        storage.fire_timer("i-1", "t", lease=lease),
        storage.remove_timer_subscription("i-1", "t", lease=lease),
        storage.register_channel_receive_and_release_lock("i-1", "c", "w1", "r:1", lease=lease),
    ):
        with pytest.raises(LeaseLostError):
            await call
    assert await pending(storage, "i-1") == [message.id]
