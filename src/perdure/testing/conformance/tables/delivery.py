"""Look at the tables: delivery."""

from datetime import timedelta

import pytest

from perdure.database.backends.base import Executor
from perdure.model.records import ChannelMode
from perdure.model.states import WorkflowStatus
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.channels import BROADCAST, COMPETING, publish
from perdure.testing.conformance.delivery import RECEIVED, delivered, message, payload
from perdure.testing.conformance.tables.channels import family_message
from perdure.testing.conformance.tools import Shift, again, listening, recorded


@pytest.mark.pitfall(6)
async def test_lowest_pending_message_is_delivered_first(storage: SQLStorage, sql: Executor) -> None:
    await listening(storage, "i-1")
    ids = await publish(storage, b"1", b"2", b"3")
    for n, expected in enumerate(ids, 2):
        found = await storage.deliver_channel_message("i-1", await message(storage, ids[2]))
        assert found is not None
        assert found.message_id == expected
        assert await again(storage, "i-1", activity_id=f"r:{n}") is (expected == ids[2])
        if expected != ids[2]:  # it knows that there is more, and waits without checking
            await sql.execute(f"UPDATE channel_subscriptions SET activity_id = 'r:{n}'")
            await storage.update_instance_status("i-1", WorkflowStatus.WAITING_FOR_MESSAGE)
    assert [name for name, _ in await recorded(storage, "i-1")] == ["r:1", "r:2", "r:3"]


async def test_sweep_delivers_messages_of_other_frameworks(storage: SQLStorage, sql: Executor) -> None:
    await listening(storage, "i-1")
    await family_message(sql, "m-1")
    (found,) = await storage.deliver_pending()
    assert found.instance_id == "i-1"
    assert (await payload(storage, "i-1"))["data"] == {"by": "family"}
    assert (await payload(storage, "i-1"))["published_at"] == "2026-01-01T00:00:00.000000+00:00"
    assert await again(storage, "i-1", activity_id="r:2")
    await family_message(sql, "m-2")
    assert len(await storage.deliver_pending()) == 1


async def wait_as_edda(sql: Executor) -> None:
    """Make a wait look as if Edda or Romancy had written it: they keep their one wait on a channel in the subscription.

    It has timed out, which is for them to notice.
    """
    for table in ("workflow_instances", "channel_subscriptions"):
        await sql.execute(f"UPDATE {table} SET framework = 'python'")
    await sql.execute("DELETE FROM perdure_waits")
    await sql.execute("UPDATE channel_subscriptions SET activity_id = 'r:1', timeout_at = '2020-01-01 00:00:00.000000'")


async def test_messages_reach_waiting_instances_of_other_frameworks(
    storage: SQLStorage, sql: Executor, shift: Shift
) -> None:
    await listening(storage, "i-1", after=timedelta(seconds=5))
    await wait_as_edda(sql)
    shift(storage, 6)
    assert await storage.find_expired_channel_subscriptions() == []
    assert await storage.next_due_at() is None
    assert not await storage.expire_channel_wait("i-1", "c")
    (first,) = await publish(storage, b"1")
    assert [found.instance_id for found in await storage.get_channel_subscribers_waiting("c")] == ["i-1"]
    assert await delivered(storage) == [("i-1", first)]
    assert await recorded(storage, "i-1") == [("r:1", RECEIVED)]
    left = "SELECT count(*) FROM channel_subscriptions WHERE activity_id IS NOT NULL OR timeout_at IS NOT NULL"
    assert await sql.fetchval(left) == 0
    assert await delivered(storage) == []


@pytest.mark.parametrize("mode", [BROADCAST, COMPETING])
async def test_leased_instance_of_another_framework_gets_its_message_in_a_sweep_after_release(
    storage: SQLStorage, sql: Executor, mode: ChannelMode
) -> None:
    await listening(storage, "i-1", mode=mode)
    await wait_as_edda(sql)
    await sql.execute("UPDATE workflow_instances SET locked_by = 'w2', lock_expires_at = '2999-01-01 00:00:00.000000'")
    ids = await publish(storage, b"1")
    assert await delivered(storage) == []
    assert await delivered(storage) == []
    await sql.execute("UPDATE workflow_instances SET locked_by = NULL, lock_expires_at = NULL")  # as they release it
    assert await delivered(storage) == [("i-1", ids[0])]


@pytest.mark.pitfall(7)
async def test_delivery_moves_both_cursors(storage: SQLStorage, sql: Executor) -> None:
    await listening(storage, "i-1")
    await publish(storage, b"1")
    ((_, first),) = await delivered(storage)
    stores = (
        "SELECT cursor_message_id FROM channel_subscriptions",
        "SELECT last_delivered_id FROM channel_delivery_cursors",
    )
    assert [await sql.fetchval(query) for query in stores] == [first, first]
