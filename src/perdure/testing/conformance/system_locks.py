"""Test how a backend handles the locks of background tasks."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from perdure.errors import LimitError
from perdure.model.records import SystemLease
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift


async def take(storage: Storage, worker_id: str, timeout_sec: float = 10, name: str = "leader") -> SystemLease:
    lease = await storage.try_acquire_system_lock(name, worker_id, timeout_sec)
    assert lease is not None
    return lease


async def test_system_lock_has_one_owner_at_a_time(storage: Storage) -> None:
    lease = await take(storage, "w1", 30)
    assert (lease.lock_name, lease.worker_id, lease.token) == ("leader", "w1", 1)
    assert timedelta(seconds=20) < lease.expires_at - datetime.now(UTC) < timedelta(seconds=40)
    assert await storage.try_acquire_system_lock("leader", "w2", 30) is None
    assert (await take(storage, "w2", name="other")).token == 1


async def test_renewal_by_the_owner_keeps_the_token(storage: Storage, shift: Shift) -> None:
    first = await take(storage, "w1")
    shift(storage, 5)
    second = await take(storage, "w1")
    assert second.token == first.token
    assert second.expires_at > first.expires_at
    shift(storage, 60)
    assert (await take(storage, "w1")).token == first.token  # expired, but not taken by another worker


async def test_every_change_of_owner_raises_the_token(storage: Storage, shift: Shift) -> None:
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


@pytest.mark.pitfall(33)
async def test_only_the_owner_releases_a_system_lock(storage: Storage) -> None:
    await take(storage, "w1")
    await storage.release_system_lock("leader", "w2")
    await storage.release_system_lock("nothing", "w1")
    assert await storage.try_acquire_system_lock("leader", "w2", 10) is None
    await storage.release_system_lock("leader", "w1")
    await storage.release_system_lock("leader", "w1")
    assert (await take(storage, "w2")).token == 2


async def test_one_of_many_concurrent_acquirers_gets_the_system_lock(
    storage: Storage, peer: Storage, shift: Shift
) -> None:
    for token in (1, 2, 3):
        answers = await asyncio.gather(
            *(side.try_acquire_system_lock("leader", f"w{token}.{n}", 10) for n, side in enumerate([storage, peer] * 8))
        )
        (winner,) = [answer for answer in answers if answer is not None]
        assert winner.token == token
        for side in (storage, peer):
            shift(side, 11 * token)


@pytest.mark.pitfall(36)
async def test_lock_names_are_compared_exactly(storage: Storage) -> None:
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


async def test_rolled_back_lock_was_never_acquired(storage: Storage) -> None:
    with pytest.raises(KeyError):
        async with storage.transaction():
            await take(storage, "w1")
            raise KeyError
    assert (await take(storage, "w2")).token == 1


async def test_tokens_continue_after_the_row_is_deleted(storage: Storage, shift: Shift) -> None:
    await take(storage, "w1")
    await storage.release_system_lock("leader", "w1")
    assert await storage.cleanup_expired_system_locks() == 1
    assert (await take(storage, "w1")).token == 2
    shift(storage, 11)
    assert await storage.cleanup_expired_system_locks() == 1
    assert (await take(storage, "w2")).token == 3


async def test_cleanup_removes_expired_and_released_locks(storage: Storage, shift: Shift) -> None:
    await take(storage, "w1", 10, "short")
    await take(storage, "w1", 100, "long")
    await take(storage, "w1", 100, "released")
    await storage.release_system_lock("released", "w1")
    shift(storage, 11)
    assert await storage.cleanup_expired_system_locks() == 2
    assert await storage.cleanup_expired_system_locks() == 0
    assert await storage.try_acquire_system_lock("long", "w2", 10) is None
