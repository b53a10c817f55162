"""Test how a backend handles the locks of background tasks."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.database.backends.base import Executor
from perdure.errors import LimitError
from perdure.model.records import SystemLease
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import shift


async def take(storage: SQLStorage, worker_id: str, timeout_sec: float = 10, name: str = "leader") -> SystemLease:
    lease = await storage.try_acquire_system_lock(name, worker_id, timeout_sec)
    assert lease is not None
    return lease


async def row(sql: Executor) -> tuple[Any, ...] | None:
    return await sql.fetchrow("SELECT locked_by, lock_expires_at FROM system_locks")


async def test_system_lock_has_one_owner_at_a_time(storage: SQLStorage) -> None:
    lease = await take(storage, "w1", 30)
    assert (lease.lock_name, lease.worker_id, lease.token) == ("leader", "w1", 1)
    assert timedelta(seconds=20) < lease.expires_at - datetime.now(UTC) < timedelta(seconds=40)
    assert await storage.try_acquire_system_lock("leader", "w2", 30) is None
    assert (await take(storage, "w2", name="other")).token == 1


async def test_renewal_by_the_owner_keeps_the_token(storage: SQLStorage) -> None:
    first = await take(storage, "w1")
    shift(storage, 5)
    second = await take(storage, "w1")
    assert second.token == first.token
    assert second.expires_at > first.expires_at
    shift(storage, 60)
    assert (await take(storage, "w1")).token == first.token  # expired, but not taken by another worker


async def test_every_change_of_owner_raises_the_token(storage: SQLStorage) -> None:
    await take(storage, "w1")
    shift(storage, 9)
    assert await storage.try_acquire_system_lock("leader", "w2", 10) is None
    shift(storage, 11)
    assert (await take(storage, "w2")).token == 2
    assert await storage.try_acquire_system_lock("leader", "w1", 10) is None
    await storage.release_system_lock("leader", "w2")
    assert (await take(storage, "w2")).token == 3
    await storage.release_system_lock("leader", "w2")
    assert (await take(storage, "w1")).token == 4


async def test_tokens_continue_after_the_row_is_deleted(storage: SQLStorage, sql: Executor) -> None:
    await take(storage, "w1")
    await sql.execute("DELETE FROM system_locks")  # as Edda and Romancy release
    assert (await take(storage, "w1")).token == 2
    shift(storage, 11)
    assert await storage.cleanup_expired_system_locks() == 1
    assert await row(sql) is None
    assert (await take(storage, "w2")).token == 3


@pytest.mark.pitfall(33)
async def test_only_the_owner_releases_a_system_lock(storage: SQLStorage) -> None:
    await take(storage, "w1")
    await storage.release_system_lock("leader", "w2")
    await storage.release_system_lock("nothing", "w1")
    assert await storage.try_acquire_system_lock("leader", "w2", 10) is None
    await storage.release_system_lock("leader", "w1")
    await storage.release_system_lock("leader", "w1")
    assert (await take(storage, "w2")).token == 2


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


async def test_one_of_many_concurrent_acquirers_gets_the_system_lock(storage: SQLStorage, peer: SQLStorage) -> None:
    for token in (1, 2, 3):
        answers = await asyncio.gather(
            *(side.try_acquire_system_lock("leader", f"w{token}.{n}", 10) for n, side in enumerate([storage, peer] * 8))
        )
        (winner,) = [answer for answer in answers if answer is not None]
        assert winner.token == token
        for side in (storage, peer):
            shift(side, 11 * token)


async def test_cleanup_removes_locks_without_an_owner(storage: SQLStorage, sql: Executor) -> None:
    await sql.execute("INSERT INTO system_locks (lock_name) VALUES ('released by Edda')")
    await take(storage, "w1", 10, "short")
    await take(storage, "w1", 100, "long")
    await take(storage, "w1", 100, "released")
    await storage.release_system_lock("released", "w1")
    shift(storage, 11)
    assert await storage.cleanup_expired_system_locks() == 3
    assert await storage.cleanup_expired_system_locks() == 0
    assert await storage.try_acquire_system_lock("long", "w2", 10) is None


@pytest.mark.pitfall(36)
async def test_lock_names_are_compared_exactly(storage: SQLStorage) -> None:
    await take(storage, "w1", name="Leader")
    await take(storage, "w2", name="leader")
    for name, worker_id, timeout_sec in (
        ("", "w", 1),
        ("l ", "w", 1),
        ("l" * 256, "w", 1),
        ("l", "", 1),
        ("l", "w", 0),
    ):
        with pytest.raises(LimitError):
            await storage.try_acquire_system_lock(name, worker_id, timeout_sec)


async def test_rolled_back_lock_was_never_acquired(storage: SQLStorage) -> None:
    with pytest.raises(KeyError):
        async with storage.transaction():
            await take(storage, "w1")
            raise KeyError
    assert (await take(storage, "w2")).token == 1
