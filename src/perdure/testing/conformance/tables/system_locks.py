"""Look at the tables: system locks."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.database.backends.base import Executor
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.system_locks import take
from perdure.testing.conformance.tools import Shift


async def row(sql: Executor) -> tuple[Any, ...] | None:
    return await sql.fetchrow("SELECT locked_by, lock_expires_at FROM system_locks")


async def test_tokens_grow_although_the_family_deletes_the_rows(
    storage: SQLStorage, sql: Executor, shift: Shift
) -> None:
    await take(storage, "w1")
    await sql.execute("DELETE FROM system_locks")  # as Edda and Romancy release
    assert (await take(storage, "w1")).token == 2
    shift(storage, 11)
    assert await storage.cleanup_expired_system_locks() == 1
    assert await row(sql) is None
    assert (await take(storage, "w2")).token == 3


@pytest.mark.pitfall(33)
async def test_released_lock_can_be_acquired_by_other_frameworks(storage: SQLStorage, sql: Executor) -> None:
    """Edda takes a row without an owner, Romancy one whose time has passed, in whichever zone it reads the time."""
    await take(storage, "w1", 1000)
    await storage.release_system_lock("leader", "w1")
    found = await row(sql)
    assert found is not None
    owner, expires_at = found
    assert owner is None
    assert str(expires_at) < str(datetime.now(UTC) - timedelta(days=1))


@pytest.mark.pitfall(33)
@pytest.mark.parametrize("expires_at", ["NULL", "'2000-01-01 00:00:00.000000'", "'2999-01-01 00:00:00.000000'"])
async def test_a_row_without_an_owner_is_free(storage: SQLStorage, sql: Executor, expires_at: str) -> None:
    await sql.execute(f"INSERT INTO system_locks (lock_name, lock_expires_at) VALUES ('leader', {expires_at})")
    assert (await take(storage, "w1")).token == 1
    assert await storage.try_acquire_system_lock("leader", "w2", 10) is None


async def test_lock_row_of_another_framework_gets_a_token(storage: SQLStorage, sql: Executor) -> None:
    await sql.execute(
        "INSERT INTO system_locks (lock_name, locked_by, lock_expires_at) "
        "VALUES ('leader', 'w1', '2999-01-01 00:00:00.000000')"
    )
    assert await storage.try_acquire_system_lock("leader", "w2", 10) is None
    assert (await take(storage, "w1")).token == 1
    assert (await take(storage, "w1")).token == 1


async def test_cleanup_removes_locks_without_an_owner(storage: SQLStorage, sql: Executor, shift: Shift) -> None:
    await sql.execute("INSERT INTO system_locks (lock_name) VALUES ('released by Edda')")
    await take(storage, "w1", 10, "short")
    await take(storage, "w1", 100, "long")
    await take(storage, "w1", 100, "released")
    await storage.release_system_lock("released", "w1")
    shift(storage, 11)
    assert await storage.cleanup_expired_system_locks() == 3
    assert await storage.cleanup_expired_system_locks() == 0
    assert await storage.try_acquire_system_lock("long", "w2", 10) is None
