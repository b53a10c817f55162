"""The real Edda and a perdure application on the same tables, at the same time."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from edda.channels import _wake_waiting_subscribers
from edda.storage.sqlalchemy_storage import SQLAlchemyStorage
from sqlalchemy.ext.asyncio import create_async_engine

from perdure import App, Message, receive, subscribe, workflow
from perdure.engine.worker import work_loop
from perdure.model.records import ChannelMode, ChannelWait, Lease, OutboxEvent, WakeUp, WorkflowInstance
from perdure.storage import wakeups
from perdure.storage.stores import SQLStorage, open_storage
from tests.engine.waiting import waiting
from tests.support.storages import storage_of

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}
FOREIGN = WakeUp(wakeups.MESSAGE, {"ch": "news", "msg_id": "x"})
OWN = WakeUp(wakeups.MESSAGE, {"channel": "news", "ch": "news"})


@workflow(name="sharing.listen")
async def listen() -> Any:
    await subscribe("news")
    message: Message[Any] = await receive("news")
    return message.data


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    name = "fresh_postgres_db" if request.param == "postgresql" else "fresh_mysql_db"
    return str(request.getfixturevalue(name))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Any]:
    """Edda's storage, which created the tables: on PostgreSQL in `public`, where we use them, too."""
    scheme, _, address = url.partition(":")
    storage = SQLAlchemyStorage(create_async_engine(f"{DRIVERS[scheme]}:{address}"))
    try:
        await storage.initialize()
        yield storage
    finally:
        await storage.close()


async def subscribed(storage: SQLStorage) -> Lease:
    lease = await storage.create_instance(WorkflowInstance("ours", "listener", b"{}"), worker_id="w1")
    assert lease is not None
    await storage.subscribe_to_channel("ours", "news", ChannelMode.BROADCAST, lease=lease)
    return lease


async def publish(edda: Any, data: dict[str, Any]) -> None:
    """Publish as Edda's application does: store the message, and push it to those that wait."""
    message_id = await edda.publish_to_channel("news", data)
    await _wake_waiting_subscribers(edda, "news", message_id, data, {}, worker_id="edda")


async def received(storage: SQLStorage) -> list[Any]:
    """The data of the messages in our run's history."""
    events, _ = await storage.get_history_paginated("ours")
    return [json.loads(event.event_data or b"{}")["data"] for event in events]


async def test_edda_never_delivers_to_our_runs_past_a_message_of_ours(url: str) -> None:
    """Its push would move the cursor beyond messages that the run has not received."""
    async with opened(url) as edda, open_storage(url) as storage:
        lease: Lease | None = await subscribed(storage)
        assert lease is not None
        await storage.suspend(lease, [ChannelWait("news", "receive:1")])
        await storage.publish_to_channel("news", b'{"n": 1}')
        await publish(edda, {"n": 2})
        assert await received(storage) == []
        assert len(await storage.deliver_pending()) == 1
        lease = await storage.try_acquire_lock("ours", "w1", 15)
        assert lease is not None
        waits = [ChannelWait("news", "receive:2")]
        assert (await storage.suspend(lease, waits)).ready == ("receive:2",)
        (message,) = await storage.get_pending_channel_messages_for_instance("ours", "news")
        assert await storage.deliver_channel_message("ours", message, lease=lease, activity_id="receive:2")
        assert await received(storage) == [{"n": 1}, {"n": 2}]
        assert await storage.get_pending_channel_messages_for_instance("ours", "news") == []


async def test_message_of_edda_is_work_to_do_now(url: str) -> None:
    """It does not mark its channel, and a worker would find it by its next complete search only."""
    async with opened(url) as edda, open_storage(url) as storage:
        lease = await subscribed(storage)
        await storage.suspend(lease, [ChannelWait("news", "receive:1")])
        assert await storage.next_work_at() is None
        before = await storage.now()
        await publish(edda, {"n": 1})
        due = await storage.next_work_at()
        assert due is not None
        assert due < before - timedelta(seconds=30)  # due also by the clock of a worker, which is behind
        assert len(await storage.deliver_pending()) == 1
        assert await received(storage) == [{"n": 1}]


async def test_event_that_eddas_relay_gave_up_can_be_requeued(url: str) -> None:
    async with opened(url) as edda, open_storage(url) as storage:
        for event_id, give_up in (("e-1", edda.mark_outbox_failed), ("e-2", edda.mark_outbox_expired)):
            await storage.add_outbox_event(OutboxEvent(event_id, "paid", event_id, b"{}"))
            assert [event["event_id"] for event in await edda.get_pending_outbox_events()] == [event_id]
            await give_up(event_id, "no broker")
            assert await storage.get_pending_outbox_events() == []
            assert await storage.requeue_outbox_event(event_id)
            assert not await storage.requeue_outbox_event(event_id)
            assert [event.event_id for event in await storage.get_pending_outbox_events()] == [event_id]
            assert await storage.mark_outbox_event_sent(event_id)


async def test_worker_finds_a_message_that_was_notified_before_its_commit(
    fresh_postgres_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_loop, "LOOK_SEC", 600)  # only notifications make the worker look
    async with opened(fresh_postgres_db) as edda, App(fresh_postgres_db, lease=timedelta(minutes=5)) as app:
        edda.set_notify_listener(object())
        handle = await listen.start()
        await waiting(app, handle.id)
        storage, looked = storage_of(app), asyncio.Event()
        look = storage.next_work_at

        async def looking() -> datetime | None:
            found = await look()
            looked.set()
            return found

        monkeypatch.setattr(storage, "next_work_at", looking)
        await edda.begin_transaction()
        await edda.publish_to_channel("news", {"n": 1})
        await looked.wait()  # the worker has found nothing
        await edda.commit_transaction()
        assert await handle.result(timedelta(seconds=60)) == {"n": 1}


async def test_worker_whose_clock_is_behind_finds_a_message_at_once(url: str) -> None:
    """The answer with the database's time may take long, and then the worker's estimate is late by that."""
    async with opened(url) as edda, App(url) as app:
        handle = await listen.start()
        await waiting(app, handle.id)
        app._worker.host.database_clock._epoch -= timedelta(seconds=5)
        await publish(edda, {"n": 1})
        app._worker.wake()
        async with asyncio.timeout(25):  # a worker looks for every kind of work twice a minute
            assert await handle.result() == {"n": 1}


async def test_hints_of_other_frameworks_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "AGAIN_SEC", (0.001, 0.002, 0.003))
    enough = asyncio.Event()

    async def hints() -> AsyncGenerator[WakeUp]:
        yield OWN
        yield FOREIGN
        await enough.wait()

    found: list[WakeUp] = []
    async with aclosing(wakeups._repeated(hints())) as repeated, asyncio.timeout(10):
        async for hint in repeated:
            found.append(hint)
            if len(found) == 5:
                enough.set()
    assert found == [OWN, *[FOREIGN] * 4]


async def test_closing_repeated_hints_closes_the_listener() -> None:
    closed, started = asyncio.Event(), asyncio.Event()

    async def hints() -> AsyncGenerator[WakeUp]:
        try:
            yield FOREIGN
            started.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def listening() -> None:
        async for _ in wakeups._repeated(hints()):
            pass

    task = asyncio.create_task(listening())
    await started.wait()
    task.cancel()
    await asyncio.wait([task])
    assert closed.is_set()
