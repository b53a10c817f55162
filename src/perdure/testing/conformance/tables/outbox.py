"""Look at the tables: outbox."""

from datetime import timedelta

import pytest

from perdure.database.backends.base import Executor
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.outbox import add, fetch, send_all


async def test_events_of_other_frameworks_are_not_touched(storage: SQLStorage, sql: Executor) -> None:
    for event_id, status in (("theirs-1", "pending"), ("theirs-2", "processing"), ("theirs-3", "failed")):
        await sql.execute(
            "INSERT INTO outbox_events (event_id, event_type, event_source, event_data, status) "
            f"VALUES ('{event_id}', 'paid', 'shop', '1', '{status}')"
        )
    await sql.execute(
        "INSERT INTO outbox_events (event_id, event_type, event_source, event_data, status, published_at) "
        "VALUES ('theirs-4', 'paid', 'shop', '1', 'published', '2020-01-01 00:00:00.000000')"
    )
    await add(storage, "ours-1", "ours-2")
    assert await fetch(storage) == ["ours-1", "ours-2"]
    await storage.increment_outbox_attempts("ours-1", back_off=timedelta(0))
    assert await send_all(storage) == ["ours-1", "ours-2"]
    assert not await storage.mark_outbox_event_sent("theirs-1")
    assert not await storage.mark_outbox_event_failed("theirs-1")
    assert await storage.cleanup_old_outbox_events(timedelta(0)) == 2
    assert await storage.list_outbox_events() == []
    kept = await sql.fetch("SELECT event_id, status FROM outbox_events ORDER BY event_id")
    assert kept == [
        ("theirs-1", "pending"),
        ("theirs-2", "processing"),
        ("theirs-3", "failed"),
        ("theirs-4", "published"),
    ]


@pytest.mark.pitfall(44)
async def test_source_without_events_is_deleted_and_can_be_reused(storage: SQLStorage, sql: Executor) -> None:
    await add(storage, "e-1", source="order/1")
    await add(storage, "e-2", "e-3", source="order/2")
    await fetch(storage)
    for event_id in ("e-1", "e-2"):
        await storage.mark_outbox_event_sent(event_id)
    assert await storage.cleanup_old_outbox_events(timedelta(0)) == 2
    for table in ("perdure_outbox_sources", "perdure_outbox_sequences"):
        assert await sql.fetch(f"SELECT event_source FROM {table}") == [("order/2",)]
    await add(storage, "e-4", source="order/1")
    assert await fetch(storage) == ["e-4"]


async def test_many_events_are_removed_batch_by_batch(storage: SQLStorage, sql: Executor) -> None:
    async with storage.transaction():
        for n in range(1100):
            await add(storage, f"e-{n}")
    await sql.execute("UPDATE outbox_events SET status = 'published', published_at = created_at")
    assert await storage.cleanup_old_outbox_events(timedelta(0)) == 1100


async def test_a_parked_event_is_stored_in_a_state_that_the_family_does_not_fetch(
    storage: SQLStorage, sql: Executor
) -> None:
    await add(storage, "e-1")
    await fetch(storage, 1)
    await storage.mark_outbox_event_failed("e-1", error="poison")
    stored = await sql.fetch("SELECT status FROM outbox_events WHERE event_id = 'e-1'")
    assert stored == [("invalid",)]  # Edda would fetch `failed` again
