"""Look at the tables: channels."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from perdure.database.backends.base import Executor
from perdure.model.records import OutgoingMessage, WorkflowInstance
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.channels import BROADCAST, DAY, old, pending, publish, subscriber
from perdure.testing.conformance.tools import Shift, new


async def family_message(sql: Executor, message_id: str, channel: str = "c") -> None:
    """Publish a message as Edda and Romancy do: without the channel's lock, and in the columns they know."""
    await sql.execute(
        "INSERT INTO channel_messages (channel, message_id, data_type, data, published_at) "
        f"VALUES ('{channel}', '{message_id}', 'json', '{{\"by\": \"family\"}}', '2026-01-01 00:00:00')"
    )


async def test_message_id_used_by_another_framework_is_known(storage: SQLStorage, sql: Executor) -> None:
    await family_message(sql, "m-1")
    found = await storage.publish_to_channel("c", b"1", message_id="m-1")
    assert [(m.id, m.data) for m in await storage.get_pending_channel_messages("c")] == [(found, b'{"by": "family"}')]


@pytest.mark.pitfall(7)
@pytest.mark.parametrize(
    "moved",
    [
        "UPDATE channel_subscriptions SET cursor_message_id = {id}",
        "UPDATE channel_delivery_cursors SET last_delivered_id = {id}",
    ],
)
async def test_cursor_moved_by_another_framework_counts(storage: SQLStorage, sql: Executor, moved: str) -> None:
    await subscriber(storage, "i-1")
    ids = await publish(storage, b"1", b"2")
    await sql.execute(moved.format(id=ids[0]))
    assert await pending(storage, "i-1") == ids[1:]
    assert await storage.get_delivery_cursor("i-1", "c") == ids[0]


@pytest.mark.pitfall(7)
async def test_updating_the_delivery_cursor_moves_both_cursors(storage: SQLStorage, sql: Executor) -> None:
    await subscriber(storage, "i-1")
    ids = await publish(storage, b"1", b"2")
    await storage.update_delivery_cursor("i-1", "c", ids[0])
    stores = (
        "SELECT cursor_message_id FROM channel_subscriptions",
        "SELECT last_delivered_id FROM channel_delivery_cursors",
    )
    assert [await sql.fetchval(query) for query in stores] == [ids[0], ids[0]]


async def test_subscription_of_another_framework_without_cursors_starts_at_zero(
    storage: SQLStorage, sql: Executor
) -> None:
    await new(storage, "i-1")
    ids = await publish(storage, b"1")
    await sql.execute("INSERT INTO channel_subscriptions (instance_id, channel, mode) VALUES ('i-1', 'c', 'broadcast')")
    assert await pending(storage, "i-1") == ids
    assert await storage.get_delivery_cursor("i-1", "c") == 0


async def test_cleanup_deletes_all_expired_message_ids(storage: SQLStorage, sql: Executor, shift: Shift) -> None:
    await storage.publish_messages([OutgoingMessage("c", b"1", message_id=f"m-{n}", source="s") for n in range(7)])
    shift(storage, 2 * 86400)
    await storage.cleanup_old_channel_messages(DAY, limit=2)
    assert await sql.fetch("SELECT message_id FROM perdure_message_keys") == []


async def test_cleanup_deletes_unused_channels(storage: SQLStorage, sql: Executor, shift: Shift) -> None:
    await subscriber(storage, "i-1", "used")
    await subscriber(storage, "i-1-b", "left")
    await storage.unsubscribe_from_channel("i-1-b", "left")
    await old(storage, shift, b"1")
    await storage.deliver_pending()
    await storage.cleanup_old_channel_messages(DAY)
    assert await channels(sql) == ["used"]
    await publish(storage, b"1")
    assert await channels(sql) == ["c", "used"]


async def channels(sql: Executor) -> Sequence[str]:
    """Return the channels that have a lock."""
    return sorted(row[0] for row in await sql.fetch("SELECT channel FROM perdure_channels"))


async def test_deleting_an_instance_deletes_its_subscriptions(storage: SQLStorage, sql: Executor, shift: Shift) -> None:
    await storage.create_instance(WorkflowInstance("i-1", "wf"))
    await storage.subscribe_to_channel("i-1", "c", BROADCAST)
    await storage.cancel_instance("i-1")
    shift(storage, 10)
    assert await storage.delete_instances(timedelta(0)) == 1
    for table in ("channel_subscriptions", "channel_delivery_cursors"):
        assert await sql.fetchval(f"SELECT count(*) FROM {table}") == 0
