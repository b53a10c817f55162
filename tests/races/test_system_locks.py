"""System locks in concurrent transactions."""

import asyncio

import pytest

from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.system_locks import take
from tests.support.blocking import at_once, blocked
from tests.support.storages import shift

# SQLite has one writer: every other writer waits for the open transaction
pytestmark = pytest.mark.parametrize("database", ["postgresql", "mysql"], indirect=True)


async def test_acquiring_does_not_wait_for_an_uncommitted_acquisition(storage: SQLStorage, peer: SQLStorage) -> None:
    await take(storage, "w1")
    for side in (storage, peer):
        shift(side, 11)
    async with storage.transaction():
        assert (await take(storage, "w2")).token == 2
        assert await at_once(peer.try_acquire_system_lock("leader", "w3", 10)) is None
    assert await peer.try_acquire_system_lock("leader", "w3", 10) is None


async def test_failed_acquisition_does_not_block_the_owner(storage: SQLStorage, peer: SQLStorage) -> None:
    first = await take(storage, "w1")
    async with peer.transaction():
        assert await peer.try_acquire_system_lock("leader", "w2", 10) is None
        assert (await at_once(take(storage, "w1"))).token == first.token


async def test_second_of_two_first_acquirers_gets_nothing(storage: SQLStorage, peer: SQLStorage) -> None:
    async with storage.transaction():
        await take(storage, "w1")
        second = asyncio.create_task(peer.try_acquire_system_lock("leader", "w2", 10))
        await blocked(peer, second)
    assert await second is None


async def test_second_of_two_first_acquirers_wins_if_the_first_rolls_back(
    storage: SQLStorage, peer: SQLStorage
) -> None:
    await storage.begin_transaction()
    await take(storage, "w1")
    second = asyncio.create_task(peer.try_acquire_system_lock("leader", "w2", 10))
    await blocked(peer, second)
    await storage.rollback_transaction()
    lease = await second
    assert lease is not None
    assert lease.token == 1


async def test_renewal_during_an_uncommitted_release_fails(storage: SQLStorage, peer: SQLStorage) -> None:
    """Otherwise the lock would be acquired again with a token that another worker may have had meanwhile."""
    await take(storage, "w1")
    async with storage.transaction():
        await storage.release_system_lock("leader", "w1")
        renewal = asyncio.create_task(peer.try_acquire_system_lock("leader", "w1", 10))
        await blocked(peer, renewal)
    assert await renewal is None
    assert (await take(storage, "w1")).token == 2
