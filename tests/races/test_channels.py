"""Messages in concurrent transactions: none is lost, skipped or delivered twice, and no delivery waits."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import LeaseLostError
from perdure.model.records import (
    ChannelMessage,
    ChannelMode,
    ChannelWait,
    Lease,
    OutgoingMessage,
    Suspension,
    TimerWait,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.channels import _forget
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.channels import pending, publish, remaining, subscriber
from perdure.testing.conformance.delivery import delivered, message
from perdure.testing.conformance.tables.channels import family_message
from perdure.testing.conformance.timers import sleeping
from perdure.testing.conformance.tools import leased, listening, recorded, status
from tests.support.blocking import at_once, blocked
from tests.support.storages import shift

BROADCAST, COMPETING = ChannelMode.BROADCAST, ChannelMode.COMPETING

# SQLite has one writer: every other writer waits for the open transaction
servers = pytest.mark.parametrize("database", ["postgresql", "mysql"], indirect=True)


@pytest.mark.pitfall(6)
async def test_lower_message_id_never_appears_after_a_higher_one(storage: SQLStorage, peer: SQLStorage) -> None:
    await subscriber(storage, "i-1")
    async with storage.transaction():
        (first,) = await publish(storage, b"1")
        second = asyncio.create_task(publish(peer, b"2"))
        await blocked(peer, second)
        assert await pending(peer, "i-1") == []
    assert [first, *await second] == await pending(peer, "i-1")
    assert (await second)[0] > first


@pytest.mark.pitfall(6)
async def test_lower_id_of_a_fenced_or_keyed_publisher_never_appears_late(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    await subscriber(storage, "i-1")
    lease = await leased(storage, "publisher")
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: peer.publish_to_channel("c", b"2", lease=lease),
        lambda: peer.publish_to_channel("c", b"3", message_id="m-1", source="s"),
        lambda: peer.publish_messages([OutgoingMessage("c", b"4")]),
    ]
    for call in calls:
        async with storage.transaction():
            (first,) = await publish(storage, b"1")
            second = asyncio.create_task(call())
            await blocked(peer, second)
        await second
        found = await pending(peer, "i-1")
        assert found == sorted(found)
        assert found[-2] == first


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_publishers_of_one_channel_have_their_turns_in_order(storage: SQLStorage, peer: SQLStorage) -> None:
    """Each waits for those before it, and none is overtaken again and again."""
    ids: list[asyncio.Task[list[int]]] = []
    async with storage.transaction():
        await publish(storage, b"0")
        for count in range(1, 7):
            ids.append(asyncio.create_task(publish(peer, b"%d" % count)))
            await until_blocked(storage, count)
    found = [number for (number,) in await asyncio.gather(*ids)]
    assert found == sorted(found)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_message_that_is_published_during_a_sweep_is_delivered_by_the_next(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    """The sweep is one statement, which does not see messages that are stored after it began."""
    await listening(storage, "i-1", "c")
    await publish(storage, b"1")
    await listening(storage, "i-2", "c")  # for the next message
    await storage.db().execute(f"CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {PAUSE} $$")
    await storage.db().execute(
        "CREATE TRIGGER pause BEFORE INSERT ON workflow_history FOR EACH ROW EXECUTE FUNCTION pause()"
    )
    try:
        async with peer.transaction() as conn:
            await conn.fetch("SELECT pg_advisory_xact_lock(42)")
            sweep = asyncio.create_task(storage.deliver_pending())
            await blocked(peer, sweep)
            await at_once(publish(storage, b"2"))
        assert [each.instance_id for each in await sweep] == ["i-1"]
        assert [each.instance_id for each in await storage.deliver_pending()] == ["i-2"]
    finally:
        await storage.db().execute("DROP TRIGGER pause ON workflow_history")
        await storage.db().execute("DROP FUNCTION pause()")


PAUSE = "PERFORM pg_advisory_xact_lock(42); RETURN NEW; END"


async def until_blocked(storage: SQLStorage, count: int) -> None:
    """Wait until so many sessions of PostgreSQL wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with storage.detached():
        async with asyncio.timeout(30):
            while await storage.db().fetchval(query) < count:  # noqa: ASYNC110 - in the database
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_publisher_that_has_locked_the_channel_does_not_queue(storage: SQLStorage, peer: SQLStorage) -> None:
    """It would wait for a publisher that waits for it."""
    async with storage.transaction():
        assert await storage.publish_messages([OutgoingMessage("b", b"1"), OutgoingMessage("c", b"1")])
        other = asyncio.create_task(publish(peer, b"2"))
        await blocked(peer, other)
        await at_once(publish(storage, b"3"))
    assert len(await other) == 1


def for_value(value: int, activity_id: str = "r:1") -> ChannelWait:
    """A wait for a message that has this value."""
    return ChannelWait("c", activity_id, where={"n": value})


async def picky(storage: SQLStorage, instance_id: str) -> Lease:
    """A new leased subscriber."""
    lease = await leased(storage, instance_id)
    await storage.subscribe_to_channel(instance_id, "c", BROADCAST, lease=lease)
    return lease


async def marked(storage: SQLStorage) -> bool:
    """Whether the channel is still to be swept."""
    return bool(await storage.db().fetchval("SELECT count(*) FROM perdure_channels WHERE dirty_at IS NOT NULL"))


@servers
async def test_publishers_of_different_channels_do_not_block_each_other(storage: SQLStorage, peer: SQLStorage) -> None:
    async with storage.transaction():
        await publish(storage, b"1", channel="a")
        await at_once(publish(peer, b"1", channel="b"))


@pytest.mark.pitfall(5)
async def test_new_wait_finds_a_message_that_was_uncommitted(storage: SQLStorage, peer: SQLStorage) -> None:
    lease = await leased(storage, "i-1")
    await storage.subscribe_to_channel("i-1", "c", BROADCAST, lease=lease)
    await storage.subscribe_to_channel("i-1", "d", BROADCAST, lease=lease)
    for waits in ([ChannelWait("c", "r:1")], [ChannelWait("d", "r:2"), ChannelWait("c", "r:1")]):
        async with storage.transaction():
            await publish(storage, b"1")
            waiting = asyncio.create_task(peer.suspend(lease, waits))
            await blocked(peer, waiting)
        assert await waiting == Suspension(False, ("r:1",))
    assert await status(storage, "i-1") is WorkflowStatus.RUNNING


@pytest.mark.pitfall(5)
async def test_message_is_delivered_to_a_wait_that_was_uncommitted(storage: SQLStorage, peer: SQLStorage) -> None:
    lease = await leased(storage, "i-1")
    await storage.subscribe_to_channel("i-1", "c", BROADCAST, lease=lease)
    async with storage.transaction():
        assert (await storage.suspend(lease, [ChannelWait("c", "r:1")])).suspended
        publishing = asyncio.create_task(publish(peer, b"1"))
        await blocked(peer, publishing)
    (first,) = await publishing
    assert await delivered(peer) == [("i-1", first)]


@pytest.mark.pitfall(5)
@pytest.mark.parametrize("used", [False, True], ids=["paths of the first wait", "paths in use"])
async def test_new_wait_for_values_finds_a_message_that_was_uncommitted(
    storage: SQLStorage, peer: SQLStorage, used: bool
) -> None:
    """The waiter is really blocked by the publisher, and checks the channel after it."""
    lease = await picky(storage, "i-1")
    if used:
        assert (await storage.suspend(await picky(storage, "other"), [for_value(9)])).suspended
    async with storage.transaction():
        await publish(storage, b'{"n": 2}', b'{"n": 1}')
        waiting = asyncio.create_task(peer.suspend(lease, [for_value(1, "r:1"), for_value(3, "r:3")]))
        await blocked(peer, waiting)
    assert await waiting == Suspension(False, ("r:1",))
    async with storage.transaction():
        await publish(storage, b'{"n": 4}')
        waiting = asyncio.create_task(peer.suspend(lease, [for_value(3, "r:3")]))
        await blocked(peer, waiting)
    assert await waiting == Suspension(True)  # what came is not for it
    (message,) = await publish(storage, b'{"n": 3}')
    assert await delivered(peer) == [("i-1", message)]


@pytest.mark.pitfall(5)
@pytest.mark.parametrize("used", [False, True], ids=["paths of the first wait", "paths in use"])
async def test_message_is_delivered_to_a_wait_for_values_that_was_uncommitted(
    storage: SQLStorage, peer: SQLStorage, used: bool
) -> None:
    """The publisher is really blocked by the waiter; the next sweep brings the two together."""
    lease = await picky(storage, "i-1")
    if used:
        assert (await storage.suspend(await picky(storage, "other"), [for_value(9)])).suspended
    async with storage.transaction():
        assert (await storage.suspend(lease, [for_value(1)])).suspended
        publishing = asyncio.create_task(publish(peer, b'{"n": 2}', b'{"n": 1}'))
        await blocked(peer, publishing)
    _, second = await publishing
    assert await delivered(peer) == [("i-1", second)]
    assert await delivered(peer) == []


@servers
async def test_sweep_keeps_the_mark_of_a_channel_locked_by_a_waiter(storage: SQLStorage, peer: SQLStorage) -> None:
    assert (await storage.suspend(await picky(storage, "other"), [for_value(9)])).suspended
    lease = await picky(storage, "i-1")
    (message,) = await publish(storage, b'{"n": 8}')
    async with storage.transaction():
        assert (await storage.suspend(lease, [for_value(1)])).suspended
        assert await at_once(delivered(peer)) == []
        assert await at_once(marked(peer))
    assert await delivered(peer) == []
    assert not await marked(peer)
    assert await pending(peer, "i-1") == [message]


@servers
async def test_sweep_keeps_the_mark_of_a_channel_locked_by_a_publisher(storage: SQLStorage, peer: SQLStorage) -> None:
    assert (await storage.suspend(await picky(storage, "i-1"), [for_value(1)])).suspended
    (first,) = await publish(storage, b'{"n": 2}')
    async with storage.transaction():
        (second,) = await publish(storage, b'{"n": 1}')
        assert await at_once(delivered(peer)) == []
        assert await at_once(delivered(peer)) == []
    assert await marked(peer)
    assert await delivered(peer) == [("i-1", second)]
    assert await pending(peer, "i-1") == [first]


@servers
async def test_sweep_beside_an_uncommitted_sweep_delivers_each_match_once(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    for n in range(20):
        assert (await storage.suspend(await picky(storage, f"i-{n}"), [for_value(n % 5)])).suspended
    ids = await publish(storage, *(b'{"n": %d}' % n for n in range(5)))
    async with storage.transaction():
        first = await storage.deliver_pending(10)
        assert len(first) == 10
        second = await at_once(peer.deliver_pending(100))
    third = await peer.deliver_pending()
    found = [(each.instance_id, each.message_id) for each in [*first, *second, *third]]
    assert sorted(found) == sorted((f"i-{n}", ids[n % 5]) for n in range(20))
    assert await delivered(peer) == []
    for n in range(20):
        assert await storage.get_history_count(f"i-{n}") == 1


async def test_parallel_sweeps_deliver_each_match_once(storage: SQLStorage, peer: SQLStorage) -> None:
    for n in range(30):
        assert (await storage.suspend(await picky(storage, f"i-{n}"), [for_value(n), for_value(-1, "r:2")])).suspended
    await publish(storage, *(b'{"n": %d}' % n for n in range(30)))
    found: list[str] = []
    async with asyncio.timeout(30):
        while len(found) < 30:
            pages = await asyncio.gather(*(each.deliver_pending(7) for each in (storage, peer, storage, peer)))
            found += [each.instance_id for page in pages for each in page]
    assert sorted(found) == sorted(f"i-{n}" for n in range(30))


@servers
async def test_channel_reused_during_its_cleanup_finds_its_waiter(storage: SQLStorage, peer: SQLStorage) -> None:
    """The cleanup has found the channel unused; the subscriber comes before its removal, or after."""
    await picky(storage, "before")
    await storage.unsubscribe_from_channel("before", "c")
    async with storage.transaction():
        lease = await picky(storage, "i-1")
        assert (await storage.suspend(lease, [for_value(1)])).suspended
        forgetting = asyncio.create_task(peer._write(_forget, 3600.0, 100, ["c"]))
        await blocked(peer, forgetting)
    await forgetting
    (message,) = await publish(storage, b'{"n": 1}')
    assert await delivered(storage) == [("i-1", message)]
    await storage.unsubscribe_from_channel("i-1", "c")
    lease = await leased(storage, "i-2")
    async with peer.transaction():
        await peer._write(_forget, 3600.0, 100, ["c"])
        waiting = asyncio.create_task(storage.subscribe_to_channel("i-2", "c", BROADCAST, lease=lease))
        await blocked(peer, waiting)
    await waiting
    assert (await storage.suspend(lease, [for_value(1)])).suspended
    (message,) = await publish(storage, b'{"n": 1}')
    assert await delivered(storage) == [("i-2", message)]


async def test_new_subscriber_gets_all_later_messages(storage: SQLStorage, peer: SQLStorage) -> None:
    await leased(storage, "i-1")
    async with storage.transaction():
        await publish(storage, b"1")
        subscribing = asyncio.create_task(peer.subscribe_to_channel("i-1", "c", BROADCAST))
        await blocked(peer, subscribing)
    await subscribing
    assert await pending(peer, "i-1") == []
    assert await publish(storage, b"2") == await pending(peer, "i-1")


@pytest.mark.pitfall(38)
async def test_concurrent_subscriptions_in_two_modes_conflict(storage: SQLStorage, peer: SQLStorage) -> None:
    for instance_id in ("i-1", "i-2"):
        await leased(storage, instance_id)
    async with storage.transaction():
        await storage.subscribe_to_channel("i-1", "c", BROADCAST)
        second = asyncio.create_task(peer.subscribe_to_channel("i-2", "c", COMPETING))
        await blocked(peer, second)
    with pytest.raises(Exception, match="broadcast"):
        await second


@servers
async def test_sweep_neither_waits_for_nor_misses_uncommitted_messages(storage: SQLStorage, peer: SQLStorage) -> None:
    """The sweep finds nothing before the commit; if it unmarked the channel then, no later sweep would check it."""
    await listening(storage, "i-1")
    await listening(storage, "i-2", "d")
    await storage.publish_to_channel("other", b"1")
    async with storage.transaction():
        (first,) = await publish(storage, b"1")
        await publish(storage, b"1", channel="e")
        (second,) = await at_once(publish(peer, b"1", channel="d"))
        assert await at_once(delivered(peer)) == [("i-2", second)]
        assert await at_once(peer.deliver_pending(channels=["c", "d", "e"])) == []
    assert await delivered(peer) == [("i-1", first)]


@servers
async def test_message_published_during_a_sweep_is_delivered_later(storage: SQLStorage, peer: SQLStorage) -> None:
    await listening(storage, "i-1")
    await listening(storage, "i-2")
    await publish(storage, b"1")
    async with storage.transaction():
        assert len(await storage.deliver_pending()) == 2  # the channel is unmarked, and locked
        publishing = asyncio.create_task(publish(peer, b"2"))
        await blocked(peer, publishing)
    (second,) = await publishing
    await storage.db().execute("UPDATE channel_subscriptions SET activity_id = 'r:2'")
    await storage.db().execute("UPDATE workflow_instances SET status = 'waiting_for_message'")
    assert await delivered(peer) == [("i-1", second), ("i-2", second)]


@pytest.mark.pitfall(16)
@servers
async def test_delivery_skips_an_instance_with_an_uncommitted_delivery(storage: SQLStorage, peer: SQLStorage) -> None:
    await listening(storage, "i-1")
    (first,) = await publish(storage, b"1")
    offered = await message(storage, first)
    await storage.begin_transaction()
    assert await storage.deliver_channel_message("i-1", offered) is not None
    assert await at_once(peer.deliver_channel_message("i-1", offered)) is None
    assert await at_once(delivered(peer)) == []
    await storage.rollback_transaction()
    assert await delivered(peer) == [("i-1", first)]


@pytest.mark.pitfall(4)
@servers
async def test_competing_message_with_an_uncommitted_delivery_is_not_delivered_again(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    for n in range(3):
        await listening(storage, f"i-{n}", mode=COMPETING)
    first, second = await publish(storage, b"1", b"2")
    await storage.begin_transaction()
    assert await delivered(storage, 1) == [("i-0", first)]
    assert await at_once(delivered(peer)) == [("i-1", second)]
    await storage.rollback_transaction()
    assert await delivered(peer) == [("i-0", first)]


@pytest.mark.pitfall(6)
@servers
async def test_broadcast_message_with_an_uncommitted_delivery_reaches_other_subscribers(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    for n in range(2):
        await listening(storage, f"i-{n}")
    first, _ = await publish(storage, b"1", b"2")
    async with storage.transaction():
        assert await storage.deliver_channel_message("i-0", await message(storage, first)) is not None
        assert await at_once(delivered(peer)) == [("i-1", first)]


@servers
async def test_new_subscriber_does_not_wait_for_an_uncommitted_delivery(storage: SQLStorage, peer: SQLStorage) -> None:
    """It would lock the channel meanwhile, and publishers would wait for it."""
    await listening(storage, "i-1")
    await listening(storage, "i-3")
    (first,) = await publish(storage, b"1")
    lease = await leased(storage, "i-2")
    async with storage.transaction():
        assert await storage.deliver_channel_message("i-3", await message(storage, first)) is not None
        await at_once(peer.subscribe_to_channel("i-2", "c", BROADCAST, lease=lease))


@servers
async def test_timer_with_an_uncommitted_firing_fires_once(storage: SQLStorage, peer: SQLStorage) -> None:
    await sleeping(storage, "i-1")
    shift(storage, 11)
    shift(peer, 11)
    await storage.begin_transaction()
    assert await storage.fire_timer("i-1", "t")
    assert not await at_once(peer.fire_timer("i-1", "t"))
    await storage.rollback_transaction()
    assert await peer.fire_timer("i-1", "t")
    assert await recorded(storage, "i-1") == [("t:1", "TimerExpired")]


@servers
async def test_timeout_and_delivery_of_one_wait_exclude_each_other(storage: SQLStorage, peer: SQLStorage) -> None:
    await listening(storage, "i-1", after=timedelta(seconds=5))
    (first,) = await publish(storage, b"1")
    shift(storage, 6)
    async with storage.transaction():
        assert await storage.expire_channel_wait("i-1", "c")
        assert await at_once(peer.deliver_channel_message("i-1", await message(peer, first))) is None
    assert await delivered(peer) == []
    assert await recorded(peer, "i-1") == [("r:1", "MessageTimeout")]
    assert await pending(peer, "i-1") == [first]


@pytest.mark.pitfall(1)
async def test_stale_worker_cannot_publish_or_wait_during_an_uncommitted_takeover(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    soon = timedelta(seconds=5)
    calls: list[Callable[[Lease], Coroutine[Any, Any, object]]] = [
        lambda lease: storage.publish_to_channel("c", b"1", lease=lease),
        lambda lease: storage.suspend(lease, [ChannelWait("c", "r:1")]),
        lambda lease: storage.suspend(lease, [TimerWait("t", "t:1", after=soon)]),
        lambda lease: storage.suspend(lease, [ChannelWait("c", "r:1"), TimerWait("t", "t:1", after=soon)]),
        lambda lease: storage.subscribe_to_channel(lease.instance_id, "d", BROADCAST, lease=lease),
        lambda lease: storage.fire_timer(lease.instance_id, "t", lease=lease),
    ]
    shift(peer, 20)
    for n, call in enumerate(calls):
        lease = await leased(storage, f"i-{n}", timeout_sec=10)
        await storage.subscribe_to_channel(f"i-{n}", "c", BROADCAST, lease=lease)
        async with peer.transaction():
            assert await peer.try_acquire_lock(f"i-{n}", "w2", 10) is not None
            stale = asyncio.create_task(call(lease))
            await blocked(peer, stale)
        with pytest.raises(LeaseLostError):
            await stale
        assert await storage.get_channel_subscription(f"i-{n}", "d") is None
    assert await remaining(storage) == []
    assert await storage.db().fetchval("SELECT count(*) FROM workflow_timer_subscriptions") == 0


async def test_message_id_uncommitted_in_another_channel_is_known_after_its_commit(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    for end in (storage.rollback_transaction, storage.commit_transaction):
        await storage.begin_transaction()
        first = await storage.publish_to_channel("a", b"1", message_id=end.__name__, source="s")
        again = asyncio.create_task(peer.publish_to_channel("b", b"1", message_id=end.__name__, source="s"))
        await blocked(peer, again)
        await end()
        kept = [channel for channel in "ab" if await again in await remaining(storage, channel)]
        assert kept == ["a" if end == storage.commit_transaction else "b"]
    assert await again == first


@pytest.mark.pitfall(54)
async def test_cleanup_keeps_the_backlog_of_an_uncommitted_subscriber(storage: SQLStorage, peer: SQLStorage) -> None:
    await leased(storage, "i-1")
    ids = await publish(storage, b"1")
    shift(peer, 3600)
    async with storage.transaction():
        await storage.subscribe_to_channel("i-1", "c", COMPETING)
        cleaning = asyncio.create_task(peer.cleanup_old_channel_messages(timedelta(minutes=1)))
        await blocked(peer, cleaning)
    assert await cleaning == 0
    assert await pending(storage, "i-1") == ids


@servers
async def test_uncommitted_message_of_another_framework_is_found_later_whatever_its_id(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    """Other frameworks take no lock: a lower id may appear after a higher one was seen."""
    await listening(storage, "i-1")
    insert = (
        "INSERT INTO channel_messages (channel, message_id, data_type, data, published_at) "
        "VALUES ('c', 'low', 'json', '1', '2026-01-01 00:00:00')"
    )
    async with storage.transaction() as conn:
        await conn.execute(insert)
        await family_message(peer.db(), "high", "elsewhere")
        assert await at_once(delivered(peer)) == []
    assert len(await delivered(peer)) == 1


async def test_batches_in_opposite_order_do_not_deadlock(storage: SQLStorage, peer: SQLStorage) -> None:
    leases = [await leased(storage, f"i-{n}") for n in range(4)]
    for lease in leases:
        for channel in "abcd":
            await storage.subscribe_to_channel(lease.instance_id, channel, BROADCAST)

    async def work(side: SQLStorage, n: int) -> list[object]:
        order = random.Random(n).sample("abcd", 4)
        published = await side.publish_messages([OutgoingMessage(channel, b"1") for channel in order])
        waits = [ChannelWait(channel, f"r:{channel}") for channel in order]
        return [
            *published,
            *await side.suspend_instances([(lease, waits) for lease in random.Random(n).sample(leases, 4)]),
        ]

    answers = await asyncio.gather(*(work([storage, peer][n % 2], n) for n in range(12)))
    kinds = {type(answer) for batch in answers for answer in batch}
    assert kinds <= {int, Suspension, LeaseLostError}
    assert [len(await remaining(storage, channel)) for channel in "abcd"] == [12] * 4


@pytest.mark.parametrize("mode", [BROADCAST, COMPETING])
async def test_concurrent_publishers_sweepers_and_receivers_deliver_each_message_once(
    storage: SQLStorage, peer: SQLStorage, mode: ChannelMode
) -> None:
    """Publishers, sweepers and receivers on both sides at once; every receiver waits, is woken, and waits again."""
    receivers, each = ("i-0", "i-1", "i-2"), 12
    for instance_id in receivers:
        await listening(storage, instance_id, mode=mode)
    total, done, offered = 2 * each, asyncio.Event(), ChannelMessage(0, "c", "")

    async def publisher(side: SQLStorage) -> None:
        for n in range(each):
            await side.publish_to_channel("c", str(n).encode())

    async def sweeper(side: SQLStorage) -> None:
        while not done.is_set():
            await side.deliver_pending(2)
            await asyncio.sleep(0)

    async def received() -> int:
        return sum([await storage.get_history_count(instance_id) for instance_id in receivers])

    async def receiver(side: SQLStorage, instance_id: str) -> None:
        while not done.is_set():
            lease = await side.try_acquire_lock(instance_id, "w1", 60)
            if lease is not None:
                step = f"r:{await side.get_history_count(instance_id) + 1}"
                if not (await side.suspend(lease, [ChannelWait("c", step)])).suspended:
                    await side.deliver_channel_message(instance_id, offered, lease=lease, activity_id=step)
                    await side.release_lock(instance_id, "w1", lease=lease)
            if await received() >= total * (len(receivers) if mode is BROADCAST else 1):
                done.set()

    async with asyncio.timeout(60):
        await asyncio.gather(
            *(publisher(side) for side in (storage, peer)),
            *(sweeper(side) for side in (storage, peer)),
            *(receiver([storage, peer][n % 2], instance_id) for n, instance_id in enumerate(receivers)),
        )
    found = [await _received(storage, instance_id) for instance_id in receivers]
    assert all(ids == sorted(set(ids)) for ids in found)
    if mode is BROADCAST:
        assert {len(ids) for ids in found} == {total}
    else:
        assert len({message for ids in found for message in ids}) == sum(map(len, found)) == total


async def _received(storage: SQLStorage, instance_id: str) -> list[int]:
    events, _ = await storage.get_history_paginated(instance_id)
    return [json.loads(event.event_data or b"")["id"] for event in events]


@pytest.mark.pitfall(9)
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_notifications_have_the_keys_that_edda_and_romancy_read(storage: SQLStorage) -> None:
    heard: dict[str, dict[str, object]] = {}
    all_heard = asyncio.Event()

    def hear(_: object, __: object, kind: str, text: str) -> None:
        heard.setdefault(kind, json.loads(text))
        if len(heard) == 3:
            all_heard.set()

    connection = await storage._backend.connect()  # type: ignore[attr-defined]
    try:
        for channel in ("workflow_channel_message", "workflow_resumable", "workflow_timer_expired"):
            await connection.add_listener(channel, hear)
        await listening(storage, "i-1", after=timedelta(seconds=5))
        first = await storage.publish_to_channel("c", b"1")
        await storage.deliver_pending()
        await asyncio.wait_for(all_heard.wait(), 5)
    finally:
        await connection.close()
    published = heard["workflow_channel_message"]
    assert (published["channel"], published["channel_name"], published["ch"]) == ("c", "c", "c")
    assert published["message_id"] == first
    assert isinstance(published["msg_id"], str)
    assert heard["workflow_resumable"] == {"instance_id": "i-1", "workflow_name": "wf", "wf_id": "i-1", "wf_name": "wf"}
    assert heard["workflow_timer_expired"]["instance_id"] == "i-1"
