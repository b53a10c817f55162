"""The outbox in concurrent transactions: relays wait for no transaction that adds events, and no event is missed."""

import asyncio
from datetime import timedelta

import pytest

from perdure.model.records import OutboxEvent
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.outbox import add, fetch
from tests.support.blocking import at_once, blocked

# SQLite has one writer: every other writer waits for the open transaction
pytestmark = pytest.mark.parametrize("database", ["postgresql", "mysql"], indirect=True)


async def test_lower_sequence_number_never_appears_after_a_higher_one(storage: SQLStorage, peer: SQLStorage) -> None:
    async with storage.transaction():
        await add(storage, "e-1")
        second = asyncio.create_task(add(peer, "e-2"))
        await blocked(peer, second)
        await at_once(add(peer, "other", source="other"))
        assert await at_once(fetch(peer)) == ["other"]
    await second
    assert await fetch(peer) == ["e-1", "e-2"]


async def test_relay_does_not_wait_for_uncommitted_events(storage: SQLStorage, peer: SQLStorage) -> None:
    await add(storage, "e-1", "e-2")
    async with storage.transaction():
        await add(storage, "e-3")
        assert await at_once(fetch(peer)) == ["e-1", "e-2"]
        assert await at_once(peer.mark_outbox_event_sent("e-1"))
        assert await at_once(peer.increment_outbox_attempts("e-2", back_off=timedelta(0)))
        assert await at_once(fetch(peer)) == ["e-2"]
        assert await at_once(peer.mark_outbox_event_sent("e-2"))  # the last visible event
        assert await at_once(fetch(peer)) == []
    assert await fetch(peer) == ["e-3"]


async def test_event_added_while_its_source_becomes_idle_is_fetched(storage: SQLStorage, peer: SQLStorage) -> None:
    await add(storage, "e-1")
    async with storage.transaction():
        assert await fetch(storage) == ["e-1"]
        await storage.mark_outbox_event_sent("e-1")
        second = asyncio.create_task(add(peer, "e-2"))
        await blocked(peer, second)
    await second
    assert await fetch(peer) == ["e-2"]


async def test_event_added_while_its_source_is_deleted_is_fetched(storage: SQLStorage, peer: SQLStorage) -> None:
    await add(storage, "e-1")
    await storage.mark_outbox_event_sent("e-1")
    async with storage.transaction():
        assert await storage.cleanup_old_outbox_events(timedelta(0)) == 1
        second = asyncio.create_task(add(peer, "e-2"))
        await blocked(peer, second)
    await second
    assert await fetch(peer) == ["e-2"]


@pytest.mark.pitfall(30)
async def test_relay_skips_events_that_another_relay_is_fetching(storage: SQLStorage, peer: SQLStorage) -> None:
    await add(storage, "a", source="a")
    async with storage.transaction():
        assert await fetch(storage) == ["a"]
        await at_once(add(peer, "b", source="b"))
        assert await at_once(fetch(peer)) == ["b"]
    assert await fetch(peer) == []


async def test_rolled_back_fetch_claims_nothing(storage: SQLStorage, peer: SQLStorage) -> None:
    await add(storage, "e-1")
    await storage.begin_transaction()
    assert await fetch(storage) == ["e-1"]
    assert await at_once(fetch(peer)) == []
    await storage.rollback_transaction()
    assert await fetch(peer) == ["e-1"]


async def test_marks_of_one_source_are_serialized(storage: SQLStorage, peer: SQLStorage) -> None:
    """Each must see what the other did, or both would leave the source to the other."""
    await add(storage, "e-1", "e-2", "e-3")
    assert await fetch(storage, 2) == ["e-1", "e-2"]
    async with storage.transaction():
        await storage.mark_outbox_event_sent("e-1")
        second = asyncio.create_task(peer.mark_outbox_event_sent("e-2"))
        await blocked(peer, second)
    assert await second
    assert await fetch(peer) == ["e-3"]


async def test_same_event_from_two_transactions_is_added_once(storage: SQLStorage, peer: SQLStorage) -> None:
    event = OutboxEvent("e-1", "paid", "shop", b"1")
    async with storage.transaction():
        await storage.add_outbox_event(event)
        again = asyncio.create_task(peer.add_outbox_event(event))
        await blocked(peer, again)
    await again
    assert await fetch(peer) == ["e-1"]
