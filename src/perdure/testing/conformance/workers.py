"""Test what a backend knows about its workers."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from perdure.errors import LimitError
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift

MINUTE = timedelta(minutes=1)


async def alive(storage: Storage) -> list[str]:
    return [worker.worker_id for worker in await storage.list_workers(alive_within=MINUTE)]


async def test_heartbeat_keeps_start_time_and_info(storage: Storage, shift: Shift) -> None:
    await storage.beat_worker("w1", b'{"host": "a"}')
    (first,) = await storage.list_workers()
    assert first.started_at == first.beat_at
    assert abs(datetime.now(UTC) - first.beat_at) < MINUTE
    shift(storage, 20)
    await storage.beat_worker("w1")
    (second,) = await storage.list_workers()
    assert (second.started_at, second.info) == (first.started_at, b'{"host": "a"}')
    assert timedelta(seconds=19) < second.beat_at - first.beat_at < timedelta(seconds=50)
    await storage.beat_worker("w1", b'{"host": "b"}')
    assert [worker.info for worker in await storage.list_workers()] == [b'{"host": "b"}']


async def test_longest_running_worker_is_listed_first(storage: Storage, shift: Shift) -> None:
    for seconds, worker in enumerate(("w2", "w1", "w3")):
        shift(storage, seconds)
        await storage.beat_worker(worker)
    await storage.beat_worker("w2")
    assert [worker.worker_id for worker in await storage.list_workers()] == ["w2", "w1", "w3"]
    assert [worker.worker_id for worker in await storage.list_workers(limit=2)] == ["w2", "w1"]


async def test_workers_without_recent_heartbeats_are_not_listed_as_alive(storage: Storage, shift: Shift) -> None:
    await storage.beat_worker("w1")
    shift(storage, 61)
    await storage.beat_worker("w2")
    assert await alive(storage) == ["w2"]
    assert len(await storage.list_workers()) == 2
    await storage.beat_worker("w1")
    assert await alive(storage) == ["w1", "w2"]


@pytest.mark.pitfall(44)
async def test_dead_workers_are_deleted_after_a_week(storage: Storage, shift: Shift) -> None:
    await storage.beat_worker("dead")
    await storage.beat_worker("stopped")
    await storage.beat_worker("stopped", gone=True)
    await storage.beat_worker("stopped", gone=True)
    assert [worker.worker_id for worker in await storage.list_workers()] == ["dead"]
    shift(storage, 7 * 24 * 3600 - 60)
    await storage.beat_worker("new")
    assert [worker.worker_id for worker in await storage.list_workers()] == ["dead", "new"]
    shift(storage, 7 * 24 * 3600 + 60)
    await storage.beat_worker("newer")
    assert [worker.worker_id for worker in await storage.list_workers()] == ["new", "newer"]


async def test_concurrent_first_heartbeats_succeed(storage: Storage, peer: Storage) -> None:
    await asyncio.gather(*(side.beat_worker("w1", b"1") for side in [storage, peer] * 6))
    assert [worker.worker_id for worker in await storage.list_workers()] == ["w1"]


async def test_worker_id_and_info_have_limits(storage: Storage) -> None:
    for worker_id, info in (("", None), ("w" * 256, None), ("w1", b"1" * (64 * 1024 + 1)), ("w1", b"\xff")):
        with pytest.raises(LimitError):
            await storage.beat_worker(worker_id, info)
    with pytest.raises(LimitError):
        await storage.list_workers(alive_within=-MINUTE)
    assert await storage.list_workers() == []


async def test_now_is_the_time_of_the_database(storage: Storage, shift: Shift) -> None:
    assert abs(datetime.now(UTC) - await storage.now()) < MINUTE
    shift(storage, 3600)
    assert timedelta(minutes=59) < await storage.now() - datetime.now(UTC) < timedelta(minutes=61)


async def test_open_storage_has_no_pending_migrations(storage: Storage) -> None:
    assert await storage.pending_migrations() == []
    async with storage.transaction():  # as part of it: on SQLite, nobody else can write meanwhile
        assert await storage.pending_migrations() == []
