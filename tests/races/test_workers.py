"""Rows of workers with real connections; a test continues when the other side is really blocked."""

import asyncio

from perdure.storage.stores import SQLStorage
from tests.support.blocking import blocked


async def test_concurrent_first_heartbeats_are_both_stored(storage: SQLStorage, peer: SQLStorage) -> None:
    async with peer.transaction():
        await peer.beat_worker("w1")
        beat = asyncio.create_task(storage.beat_worker("w1", b'{"n": 1}'))
        await blocked(peer, beat)
    await beat
    assert [(worker.worker_id, worker.info) for worker in await storage.list_workers()] == [("w1", b'{"n": 1}')]
