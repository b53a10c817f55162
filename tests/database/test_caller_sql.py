"""SQL of the caller that ends the transaction: later statements are never committed on their own."""

from contextlib import suppress

import pytest

from perdure.errors import TransactionError
from perdure.model.records import WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.support.databases import run_natively
from tests.support.storages import Database

BEFORE, AFTER = WorkflowInstance("before", "wf"), WorkflowInstance("after", "wf")


async def check(storage: SQLStorage) -> None:
    """Check that nothing was written and the storage still works."""
    assert await storage.get_instances(["before", "after"]) == [None, None]
    await storage.create_instance(AFTER)
    assert await storage.get_instance("after") is not None


@pytest.mark.parametrize("lent", [True, False], ids=["lent", "asked"])
async def test_operation_after_the_caller_ended_the_transaction_is_refused(database: Database, lent: bool) -> None:
    storage = await database.storage()
    with pytest.raises(TransactionError, match="has ended"):
        async with storage.transaction() as connection:
            await storage.create_instance(BEFORE)
            if lent:
                await run_natively(connection.native, "ROLLBACK")
            else:
                with suppress(TransactionError):
                    await connection.execute("ROLLBACK")
            await storage.create_instance(AFTER)
    await check(storage)


async def test_commit_after_the_caller_ended_the_transaction_raises(database: Database) -> None:
    storage = await database.storage()
    with pytest.raises(TransactionError, match="has ended"):
        async with storage.transaction() as connection:
            await storage.create_instance(BEFORE)
            await run_natively(connection.native, "ROLLBACK")
    await check(storage)


async def test_error_after_the_caller_ended_the_transaction_is_raised_unchanged(database: Database) -> None:
    """On SQLite the writer would fail at a rollback without a transaction, and block all later writes."""
    storage = await database.storage()
    with pytest.raises(ZeroDivisionError):
        async with storage.transaction() as connection:
            await storage.create_instance(BEFORE)
            await run_natively(connection.native, "ROLLBACK")
            raise ZeroDivisionError
    await check(storage)


async def test_caller_can_use_savepoints_on_the_native_connection(database: Database) -> None:
    storage = await database.storage()
    async with storage.transaction() as connection:
        await run_natively(connection.native, "SAVEPOINT own")
        await storage.create_instance(BEFORE)
        await run_natively(connection.native, "RELEASE SAVEPOINT own")
    assert await storage.get_instance("before") is not None
