"""The features of the dialects, compared with what the databases do."""

from contextlib import suppress
from dataclasses import fields

import pytest

from perdure.database.dialects import Features, MySQLDriver, PostgresDriver, SQLiteDriver
from perdure.errors import StorageError
from perdure.storage.stores import SQLStorage

DRIVERS = (SQLiteDriver, PostgresDriver, MySQLDriver)


@pytest.mark.parametrize("name", [field.name for field in fields(Features)])
def test_every_feature_distinguishes_databases(name: str) -> None:
    assert {getattr(driver.features, name) for driver in DRIVERS} == {False, True}


async def _is_accepted(storage: SQLStorage, *statements: str) -> bool:
    """Run the statements in a transaction that is rolled back."""
    await storage.begin_transaction()
    try:
        for statement in statements:
            await storage.conn().execute(statement)
    except StorageError:
        return False
    finally:
        await storage.rollback_transaction()
    return True


async def test_writes_in_one_statement(storage: SQLStorage) -> None:
    statement = (
        "WITH gone AS (DELETE FROM {0}perdure_waits WHERE instance_id = '' RETURNING instance_id) "
        "DELETE FROM {0}workflow_timer_subscriptions WHERE instance_id IN (SELECT instance_id FROM gone)"
    )
    driver = storage._backend.driver
    accepted = await _is_accepted(storage, statement.format(driver.qualified("")))
    assert accepted is driver.features.one_statement_writes


async def test_returning_from_an_update(storage: SQLStorage) -> None:
    """MariaDB has RETURNING for INSERT and DELETE, but not for UPDATE."""
    driver = storage._backend.driver
    table = driver.qualified("workflow_instances")
    statement = f"UPDATE {table} SET status = status WHERE instance_id = '' RETURNING instance_id"
    assert await _is_accepted(storage, statement) is driver.features.returning


async def test_row_locks(storage: SQLStorage) -> None:
    driver = storage._backend.driver
    table = driver.qualified("workflow_instances")
    accepted = await _is_accepted(storage, f"SELECT instance_id FROM {table} FOR UPDATE SKIP LOCKED")
    assert accepted is driver.features.row_locks


async def test_changes_of_tables_in_a_transaction(storage: SQLStorage) -> None:
    driver = storage._backend.driver
    table = driver.qualified("perdure_feature_test")
    try:
        with suppress(StorageError):  # of the rollback that comes too late
            await _is_accepted(storage, f"CREATE TABLE {table} (n INTEGER)")
        left = await _is_accepted(storage, f"SELECT * FROM {table}")
        assert left is not driver.features.transactional_ddl
    finally:
        await storage.db().execute(f"DROP TABLE IF EXISTS {table}")


async def test_notifications(storage: SQLStorage) -> None:
    driver = storage._backend.driver
    assert await _is_accepted(storage, "NOTIFY perdure_feature_test") is driver.features.notifications


async def test_schemas(storage: SQLStorage) -> None:
    assert bool(storage.schema) is storage._backend.driver.features.schemas
