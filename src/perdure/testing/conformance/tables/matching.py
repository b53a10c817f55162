"""Look at the tables: matching."""

import pytest

from perdure.database.backends.base import Executor
from perdure.model.records import (
    Suspension,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.channels import pending, remaining
from perdure.testing.conformance.matching import (
    cursor,
    delivered,
    publish,
    resumed,
    sec,
    take,
    wait,
    waiting,
)
from perdure.testing.conformance.tools import Shift


async def rows(sql: Executor, table: str) -> int:
    return int(await sql.fetchval(f"SELECT count(*) FROM {table}"))


async def test_cursor_moves_only_over_messages_taken_in_order(storage: SQLStorage, sql: Executor) -> None:
    await waiting(storage, wait("a", n=1))
    start = await cursor(storage)
    left, first, last = await publish(storage, {"n": 9}, {"n": 1}, {"n": 2})
    assert len(await delivered(storage)) == 1
    assert await cursor(storage) == start
    assert await sql.fetchval("SELECT message_id FROM perdure_taken_messages") == first
    lease = await resumed(storage)
    for activity_id, message in (("b", left), ("c", last)):
        found = await take(storage, lease, activity_id)
        assert found is not None
        assert (found.message_id, await cursor(storage)) == (message, message)
    assert await take(storage, lease, "d") is None
    assert await rows(sql, "perdure_taken_messages") == 1


async def test_invalid_json_of_other_frameworks_matches_nothing(storage: SQLStorage, sql: Executor) -> None:
    await waiting(storage, wait("a", n=1))
    for n, data in enumerate(["no json", "", "[" * 100_000, '{"n": ' + "1" * 5000 + "}", '{"n": NaN}']):
        await sql.execute(
            "INSERT INTO channel_messages (channel, message_id, data_type, data, published_at) "
            f"VALUES ('c', 'm-{n}', 'json', '{data}', '2026-01-01 00:00:00.000000')"
        )
    assert await delivered(storage) == []
    (message,) = await publish(storage, {"n": 1})
    assert await delivered(storage) == [("i-1", "a", message)]


async def test_late_message_of_another_framework_with_a_lower_id_is_matched(storage: SQLStorage, sql: Executor) -> None:
    await waiting(storage, wait("a", n=1))
    hole, _ = await publish(storage, {"n": 1}, {"n": 2})
    await storage.delete_channel_message(hole)
    assert await delivered(storage) == []
    await sql.execute(
        "INSERT INTO channel_messages (id, channel, message_id, data_type, data, published_at) "
        f"VALUES ({hole}, 'c', 'm-1', 'json', '{{\"n\": 1}}', '2026-01-01 00:00:00.000000')"
    )
    assert await delivered(storage) == [("i-1", "a", hole)]


@pytest.mark.parametrize("end", ["unsubscribe", "clear", "cancel", "compensate", "fail", "complete", "recur", "clean"])
async def test_waits_are_deleted_with_their_instance_or_subscription(
    storage: SQLStorage, sql: Executor, end: str, shift: Shift
) -> None:
    await waiting(storage, wait("a", after=10, n=1), wait("b", after=10), wait("c", n=3))
    await publish(storage, {"n": 3})
    await publish(storage, {"n": 3})
    assert await delivered(storage) == [("i-1", "b", (await remaining(storage))[0])]
    lease = await resumed(storage)
    assert await storage.suspend(lease, [wait("a", after=10, n=1), wait("d", n=4)]) == Suspension(True)
    lease = await resumed(storage)
    ids = await publish(storage, {"n": 4})
    assert (await take(storage, lease, "d", n=4)) is not None  # out of turn, and it is running again
    assert [await rows(sql, table) for table in ("perdure_waits", "perdure_taken_messages")] == [1, 1]
    if end == "unsubscribe":
        await storage.unsubscribe_from_channel("i-1", "c", lease=lease)
    elif end == "clear":
        await storage.clear_channel_waiting_state("i-1", "c", lease=lease)
    elif end in ("cancel", "compensate"):
        await storage.cancel_instance("i-1", compensate=end == "compensate")
    elif end == "fail":
        await storage.update_instance_status("i-1", WorkflowStatus.FAILED, lease=lease)
    elif end == "complete":
        await storage.complete_and_release(lease, b"1")
    elif end == "recur":
        await storage.recur_instance("i-1", b"1", lease=lease)
    else:
        await storage.cleanup_instance_subscriptions("i-1", lease=lease)
    assert await rows(sql, "perdure_waits") == 0
    assert await rows(sql, "perdure_taken_messages") == (0 if end in ("unsubscribe", "clean") else 1)
    shift(storage, 60)
    assert await storage.find_expired_channel_subscriptions() == []
    if end == "recur":
        assert await pending(storage, "i-1") == [ids[0] - 1]
        assert await storage.suspend(lease, [wait("d", n=4)]) == Suspension(True)
    if end in ("cancel", "fail", "complete"):
        shift(storage, 3600)
        assert await storage.delete_instances(sec(60)) == 1
        assert [await rows(sql, table) for table in ("perdure_waits", "perdure_taken_messages")] == [0, 0]
