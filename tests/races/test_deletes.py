"""Deleting many rows does not wait for other rows of the same table, although these are nearly all that it has.

MySQL would read the whole table, because it is cheaper than so many lookups, and wait for each row that is locked.
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta

import pytest

from perdure.model.records import ChannelMode, ChannelWait, TimerWait, Wait
from perdure.storage.channels import _forget
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.channels import publish
from perdure.testing.conformance.outbox import add
from perdure.testing.conformance.tools import leased
from tests.support.blocking import at_once
from tests.support.storages import shift

# SQLite has one writer: every other writer waits for the open transaction
pytestmark = pytest.mark.parametrize("database", ["postgresql", "mysql"], indirect=True)

OTHER, IDS = "i-0", [f"i-{n}" for n in range(1, 9)]
DAY = timedelta(days=1)

Delete = Callable[[SQLStorage], Awaitable[object]]
Prepare = Callable[[SQLStorage], Awaitable[Delete]]


async def completion(storage: SQLStorage) -> Delete:
    """Completing instances ends the timers and waits that they have left."""
    leases = []
    for instance_id in (OTHER, *IDS):
        lease = await leased(storage, instance_id)
        await storage.subscribe_to_channel(instance_id, "c", ChannelMode.BROADCAST, lease=lease)
        waits: list[Wait] = [TimerWait("soon", "t:1", after=timedelta(seconds=5)), TimerWait("t", "t:2", after=DAY)]
        assert (await storage.suspend(lease, [*waits, ChannelWait("c", "r:1")])).suspended
    shift(storage, 6)
    for instance_id in IDS:
        assert await storage.fire_timer(instance_id, "soon")
        leases.append(await storage.try_acquire_lock(instance_id, "w1", 30))
    return lambda on: on.complete_instances([(lease, b"1") for lease in leases if lease is not None])


async def fewer_timers(storage: SQLStorage) -> Delete:
    """An instance that waits again ends the timers that it no longer needs."""
    lease = await leased(storage, OTHER)
    assert (await storage.suspend(lease, [TimerWait("t", "t:1", after=DAY)])).suspended
    lease = await leased(storage, "i-1")
    waits: list[Wait] = [TimerWait(f"t{n}", f"t:{n}", after=DAY) for n in range(8)]
    assert (await storage.suspend(lease, waits)).suspended
    again = await storage.try_acquire_lock("i-1", "w1", 30)
    assert again is not None
    return lambda on: on.suspend(again, [TimerWait("last", "t:9", after=DAY)])


async def deletion(storage: SQLStorage) -> Delete:
    """Instances that have ended are deleted."""
    await leased(storage, OTHER)
    assert await storage.complete_instances([(await leased(storage, each), b"1") for each in IDS]) == [None] * len(IDS)
    return lambda on: on.delete_ended(IDS)


async def stuck(storage: SQLStorage) -> Delete:
    """Instances are no longer stuck."""
    for instance_id in (OTHER, *IDS):
        await storage.back_off(await leased(storage, instance_id), 1, "reason", 30)
    return lambda on: on.clear_stuck(IDS)


async def messages(storage: SQLStorage) -> Delete:
    """Old messages are deleted."""
    await publish(storage, *[b"1"] * len(IDS))
    shift(storage, 3600)
    await publish(storage, b"1", channel=OTHER)
    return lambda on: on.cleanup_old_channel_messages(timedelta(minutes=1))


async def channels(storage: SQLStorage) -> Delete:
    """Unused channels are deleted."""
    for channel in (OTHER, *IDS):
        lease = await leased(storage, f"on {channel}")
        await storage.subscribe_to_channel(lease.instance_id, channel, ChannelMode.BROADCAST)
        assert (await storage.suspend(lease, [ChannelWait(channel, "r:1", where={"n": 1})])).suspended
        await storage.unsubscribe_from_channel(lease.instance_id, channel)
    return lambda on: on._write(_forget, 3600.0, 100, IDS)


async def events(storage: SQLStorage) -> Delete:
    """Published events of the outbox are deleted, and so are their sources."""
    for event_id in (OTHER, *IDS):
        await add(storage, event_id, source=event_id)
    for event_id in IDS:
        assert await storage.mark_outbox_event_sent(event_id)
    return lambda on: on.cleanup_old_outbox_events(timedelta(0))


async def keys(storage: SQLStorage) -> Delete:
    """The ids of old messages are forgotten."""
    for message_id in IDS:
        await storage.publish_to_channel("c", b"1", message_id=message_id, source="s")
    shift(storage, 3600)
    await storage.publish_to_channel("c", b"1", message_id=OTHER, source="s")
    return lambda on: on._write(_forget, 60.0, 100, [])


def of(column: str, *tables: str) -> dict[str, str]:
    """The condition of the other row in each of these tables."""
    return dict.fromkeys(tables, f"{column} = '{OTHER}'")


@pytest.mark.parametrize(
    ("prepare", "others"),
    [
        pytest.param(completion, of("instance_id", "workflow_timer_subscriptions", "perdure_waits"), id="completion"),
        pytest.param(fewer_timers, of("instance_id", "workflow_timer_subscriptions"), id="fewer timers"),
        pytest.param(deletion, of("instance_id", "workflow_instances"), id="deletion"),
        pytest.param(stuck, of("instance_id", "perdure_stuck"), id="stuck"),
        pytest.param(messages, of("channel", "channel_messages"), id="messages"),
        pytest.param(keys, of("source = 's' AND message_id", "perdure_message_keys"), id="keys"),
        pytest.param(channels, of("channel", "perdure_channels", "perdure_match_paths"), id="channels"),
        pytest.param(events, of("event_id", "outbox_events"), id="events"),
        pytest.param(events, of("event_source", "perdure_outbox_sources", "perdure_outbox_sequences"), id="sources"),
    ],
)
async def test_deleting_many_rows_does_not_wait_for_others(
    storage: SQLStorage, peer: SQLStorage, prepare: Prepare, others: dict[str, str]
) -> None:
    delete = await prepare(storage)
    before = await counted(storage, others)
    shift(peer, 3600)
    async with storage.transaction() as conn:
        for table, condition in others.items():
            assert await conn.fetch(f"SELECT 1 FROM {table} WHERE {condition} FOR UPDATE")
        await at_once(delete(peer))
    after = await counted(storage, others)
    assert all(after[table] < before[table] for table in others)


async def counted(storage: SQLStorage, tables: Iterable[str]) -> dict[str, int]:
    """The number of rows of each table."""
    return {table: await storage.db().fetchval(f"SELECT count(*) FROM {table}") for table in tables}
