"""Look at the tables: archive."""

import pytest

from perdure.database.backends.base import Executor
from perdure.model.records import CompensationEntry
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.archive import record, start
from perdure.testing.conformance.tools import new


async def count(sql: Executor, table: str, where: str = "1 = 1") -> int:
    return int(await sql.fetchval(f"SELECT count(*) FROM {table} WHERE {where}"))


async def give_everything(storage: SQLStorage, sql: Executor, instance_id: str) -> None:
    """Add a timer, a wait, a cursor, a message taken out of turn, a claimed and an unread direct one, and a group."""
    direct = f"inbox:{instance_id}"
    for statement in (
        "INSERT INTO workflow_timer_subscriptions (instance_id, timer_id, expires_at) "
        f"VALUES ('{instance_id}', 't', '2999-01-01 00:00:00.000000')",
        "INSERT INTO channel_subscriptions (instance_id, channel, mode, cursor_message_id) "
        f"VALUES ('{instance_id}', '{direct}', 'broadcast', 7)",
        "INSERT INTO perdure_waits (instance_id, channel, activity_id, timeout_at) "
        f"VALUES ('{instance_id}', '{direct}', 'receive:1', '2999-01-01 00:00:00.000000')",
        "INSERT INTO perdure_taken_messages (instance_id, channel, message_id) "
        f"VALUES ('{instance_id}', '{direct}', 9)",
        f"INSERT INTO channel_delivery_cursors (instance_id, channel, last_delivered_id) "
        f"VALUES ('{instance_id}', '{direct}', 7)",
        f"INSERT INTO channel_messages (channel, message_id, data_type, data) VALUES ('{direct}', 'm', 'json', '1')",
        f"INSERT INTO channel_message_claims (message_id, instance_id) VALUES ('m', '{instance_id}')",
    ):
        await sql.execute(statement)
    await storage.join_group(instance_id, "g")


async def test_rows_archived_by_other_frameworks_can_be_read(storage: SQLStorage, sql: Executor) -> None:
    await new(storage, "i-1")
    await record(storage, "i-1", "ours")
    await storage.archive_history("i-1")
    await sql.execute(
        "INSERT INTO workflow_history_archive (instance_id, activity_id, event_type, event_data, created_at) "
        "VALUES ('i-1', 'theirs', 'ActivityCompleted', '1', '2020-01-02 03:04:05.000000')"
    )
    theirs, ours = await storage.get_archived_history("i-1")
    assert (theirs.activity_id, theirs.original_id, theirs.event_data) == ("theirs", None, b"1")
    assert theirs.original_created_at is not None
    assert theirs.original_created_at.isoformat() == "2020-01-02T03:04:05+00:00"
    assert ours.activity_id == "ours"


@pytest.mark.pitfall(44)
async def test_cleanup_removes_all_subscriptions_of_an_instance(storage: SQLStorage, sql: Executor) -> None:
    for name in ("i-1", "i-2"):
        await new(storage, name)
    await give_everything(storage, sql, "i-1")
    await storage.join_group("i-2", "g")
    await storage.cleanup_instance_subscriptions("i-1")
    await storage.cleanup_instance_subscriptions("i-1")
    for table in (
        "workflow_timer_subscriptions",
        "channel_subscriptions",
        "channel_delivery_cursors",
        "channel_message_claims",
        "perdure_waits",
        "perdure_taken_messages",
    ):
        assert await count(sql, table) == 0, table
    assert await storage.get_group_members("g") == ["i-2"]
    assert await count(sql, "channel_messages") == 1


@pytest.mark.pitfall(20)
async def test_recur_removes_timers_and_waits_but_keeps_subscriptions_and_groups(
    storage: SQLStorage, sql: Executor
) -> None:
    lease = await start(storage)
    await give_everything(storage, sql, "i-1")
    await storage.add_compensation(CompensationEntry("i-1", "s:1", "undo"), lease=lease)
    await storage.recur_instance("i-1", b"2", lease=lease)
    assert await storage.get_compensations("i-1") == []
    assert await count(sql, "workflow_timer_subscriptions") == 0
    assert await count(sql, "perdure_waits") == 0
    assert await count(sql, "perdure_taken_messages", "instance_id = 'i-1' AND message_id = 9") == 1
    assert await count(sql, "channel_subscriptions", "instance_id = 'i-1' AND cursor_message_id = 7") == 1
    assert await count(sql, "channel_delivery_cursors", "instance_id = 'i-1' AND last_delivered_id = 7") == 1
    assert await count(sql, "channel_messages") == 1
    assert await storage.get_group_members("g") == ["i-1"]
