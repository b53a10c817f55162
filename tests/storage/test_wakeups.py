"""Notifications of PostgreSQL in the storage layer: sent with their commit, readable for Edda and Romancy."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from perdure.model.records import OutboxEvent, TimerSubscription, WakeUp
from perdure.storage.stores import PostgresStorage, SQLStorage
from perdure.testing.conformance.tools import leased
from tests.conftest import BackendDatabase
from tests.support.storages import Database


class WakeUpCollector:
    """Collects all wake-up hints of a storage in a separate task."""

    def __init__(self, storage: SQLStorage) -> None:
        self.hints: list[WakeUp] = []
        self._arrived = asyncio.Event()
        self._task = asyncio.create_task(self._listen(storage))

    async def _listen(self, storage: SQLStorage) -> None:
        async for hint in storage.wakeups():
            self.hints.append(hint)
            self._arrived.set()

    async def until(self, kind: str) -> WakeUp:
        """The first hint of a kind."""
        async with asyncio.timeout(20):
            while True:
                for hint in self.hints:
                    if hint.kind == kind:
                        return hint
                self._arrived.clear()
                await self._arrived.wait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def database(backend_database: BackendDatabase) -> AsyncIterator[Database]:
    async with backend_database("postgresql") as database:
        yield database


@pytest.fixture
async def collector(storage: SQLStorage) -> AsyncIterator[WakeUpCollector]:
    collector = WakeUpCollector(storage)
    await collector.until("scan")
    yield collector
    await collector.close()


@pytest.mark.pitfall(25)
async def test_notification_is_sent_with_its_commit_or_not_at_all(
    storage: SQLStorage, peer: SQLStorage, collector: WakeUpCollector
) -> None:
    await peer.begin_transaction()
    await peer.publish_to_channel("c", b"1")
    await storage.add_outbox_event(OutboxEvent("e-1", "t", "s", b"1"))
    await collector.until("workflow_outbox_pending")
    assert "workflow_channel_message" not in {hint.kind for hint in collector.hints}
    await peer.rollback_transaction()
    async with peer.transaction():
        await peer.publish_to_channel("c", b"2")
    await collector.until("workflow_channel_message")
    messages = await storage.get_pending_channel_messages("c")
    assert [message.data for message in messages] == [b"2"]


@pytest.mark.pitfall(9)
async def test_message_notification_has_the_keys_that_edda_and_romancy_read(
    peer: SQLStorage, collector: WakeUpCollector
) -> None:
    message = await peer.publish_to_channel("orders", b"1")
    hint = await collector.until("workflow_channel_message")
    assert {"channel": "orders", "channel_name": "orders", "ch": "orders", "message_id": message}.items() <= (
        hint.payload.items()
    )
    assert isinstance(hint.payload["msg_id"], str)


@pytest.mark.pitfall(24)
async def test_timer_notification_is_sent_by_the_registering_transaction(
    peer: SQLStorage, collector: WakeUpCollector
) -> None:
    lease = await leased(peer, "i-1")
    found = await peer.register_timer_subscription_and_release_lock(
        TimerSubscription("i-1", "t", activity_id="s:1"), "i-1", lease.worker_id, after=timedelta(hours=1), lease=lease
    )
    assert found.suspended
    hint = await collector.until("workflow_timer_expired")
    assert (hint.payload["instance_id"], hint.payload["timer_id"]) == ("i-1", "t")


async def test_notifications_can_be_disabled(storage: SQLStorage, peer: SQLStorage, collector: WakeUpCollector) -> None:
    assert isinstance(peer, PostgresStorage)
    assert peer.is_notify_enabled()
    peer.set_notify_enabled(False)
    assert not peer.is_notify_enabled()
    await peer.publish_to_channel("c", b"1")
    await storage.add_outbox_event(OutboxEvent("e-1", "t", "s", b"1"))
    await collector.until("workflow_outbox_pending")
    assert "workflow_channel_message" not in {hint.kind for hint in collector.hints}
