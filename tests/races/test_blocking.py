"""A call that must not wait for a lock, and does, fails with the reason. Neither load nor other tests make it fail."""

import pytest

from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.channels import publish
from perdure.testing.conformance.delivery import delivered, message
from perdure.testing.conformance.tools import leased, listening
from tests.support.blocking import at_once
from tests.support.databases import connect_mysql, fetch_mysql
from tests.support.storages import Database, remove_deleted_keys, wipe

servers = pytest.mark.parametrize("database", ["postgresql", "mysql"], indirect=True)

SLOW = {"postgresql": "SELECT 1 FROM (SELECT pg_sleep(0.5)) s", "mysql": "SELECT 1 + SLEEP(0.5)"}


@servers
async def test_call_that_waits_for_a_lock_fails_with_its_statement_and_the_lock(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    lease = await leased(storage, "i-1")
    async with storage.transaction() as conn:
        await conn.execute("UPDATE workflow_instances SET updated_at = updated_at WHERE instance_id = 'i-1'")
        with pytest.raises(AssertionError) as failure:
            await at_once(peer.release_lock("i-1", "w1", lease=lease), lock_sec=0.1)
    reason = str(failure.value)
    assert "waits for" in reason
    assert "blocked by connection" in reason
    assert "workflow_instances" in reason
    assert "locked_by = NULL" in reason


@servers
async def test_slow_call_that_waits_for_no_lock_is_not_ended(storage: SQLStorage) -> None:
    assert await at_once(storage.db().fetchval(SLOW[storage._backend.driver.name]), lock_sec=0.1) == 1


@pytest.mark.parametrize("database", ["mysql"], indirect=True)
async def test_deleted_rows_of_an_earlier_test_block_no_delivery(
    database: Database, storage: SQLStorage, peer: SQLStorage
) -> None:
    await listening(storage, "i-0")
    await publish(storage, b"1")
    assert len(await delivered(storage)) == 1
    async with connect_mysql(database.url) as reader:
        await fetch_mysql(reader, "START TRANSACTION WITH CONSISTENT SNAPSHOT")  # MySQL keeps deleted rows for it
        await wipe(storage)
        await remove_deleted_keys(database.url)
        for n in range(2):
            await listening(storage, f"i-{n}")
        (first,) = await publish(storage, b"1")
        async with storage.transaction():
            assert await storage.deliver_channel_message("i-0", await message(storage, first)) is not None
            assert await at_once(delivered(peer)) == [("i-1", first)]
